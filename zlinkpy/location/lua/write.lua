-- One conditional batch.
-- KEYS: index, sequence, due, snapshots, ends, then one record per key named.
-- ARGV: record prefix, nonce, grace ms, retry ms, clean-up limit, number of conditions, number of mutations,
--       then the logical keys in the order of KEYS,
--       then conditions (kind, position, operand) and mutations (kind, position, value, retention ms or 0).
-- Returns {1, now, version of each put in order} or {0, now}.

local index, sequence, due, snapshots, ends = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local prefix, nonce = ARGV[1], ARGV[2]
local grace, retry, limit = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local conditions, mutations = tonumber(ARGV[6]), tonumber(ARGV[7])
local records = #KEYS - 5
local now = milliseconds()

-- Read and check everything.
local rows = {}
for at = 1, records do
  local top = redis.call('ZREVRANGE', KEYS[5 + at], 0, 0)
  if #top > 0 then
    local row = decode(top[1])
    if row == nil or row.key ~= ARGV[7 + at] then return redis.error_reply(CORRUPT) end
    rows[at] = row
  end
end
local argument = 7 + records
for _ = 1, conditions do
  local kind, row, operand = ARGV[argument + 1], rows[tonumber(ARGV[argument + 2])], ARGV[argument + 3]
  argument = argument + 3
  local holds
  if kind == 'missing' then
    holds = not is_live(row, now)
  elseif kind == 'version' then
    holds = is_live(row, now) and row.version == operand
  else
    holds = is_live(row, now) and row.value == operand
  end
  if not holds then return {0, now} end
end
local counted = tonumber(redis.call('GET', sequence) or '0')
if counted == nil or counted < 0 or counted ~= math.floor(counted) or counted > 9007199254000000 then
  return redis.error_reply(CORRUPT)
end
redis.call('ZCARD', index)
redis.call('ZCARD', due)
local open, over = snapshots_at(snapshots, ends, now)

-- Nothing below can fail.
local reply = {1, now}
for _ = 1, mutations do
  local kind, at = ARGV[argument + 1], tonumber(ARGV[argument + 2])
  local value, retention = ARGV[argument + 3], tonumber(ARGV[argument + 4])
  argument = argument + 4
  local record, key = KEYS[5 + at], ARGV[7 + at]
  local put = kind == 'put'
  if put or is_live(rows[at], now) then
    local score = redis.call('INCR', sequence)
    local version = string.format('%.0f', score) .. '.' .. nonce
    local expiry = 0
    if put and retention > 0 then expiry = now + retention end
    if put then
      redis.call('ZADD', record, score, encode(key, value, version, expiry, false))
      redis.call('ZADD', index, 0, key)
      reply[#reply + 1] = version
    else
      redis.call('ZADD', record, score, encode(key, '', version, 0, true))
    end
    local entry = string.sub(record, #prefix + 1) .. key
    if trim(record, score, open) then
      redis.call('ZADD', due, now + retry, entry)
    elseif not put then
      redis.call('ZADD', due, now + grace, entry)
    elseif expiry ~= 0 then
      redis.call('ZADD', due, expiry + grace, entry)
    end
  end
end
forget(snapshots, ends, over)
tend(prefix, index, due, open, now, grace, retry, limit)
return reply
