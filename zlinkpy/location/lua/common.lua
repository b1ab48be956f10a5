-- Shared by the scripts that change anything. Physical layout (all keys carry one hash tag, so one slot holds them):
--   record    ZSET  score = sequence, member = format byte + msgpack [key, value, version, expiry, tombstone]; highest = current
--   index     ZSET  score 0, member = logical key
--   sequence  STRING, counts mutations
--   due       ZSET  score = when to look again, member = 64 hex digits of the record's digest + logical key
--   snapshots ZSET  member = snapshot id, score = the sequence it shows;  ends: the same ids, score = when it expires
--
-- A failed script is not undone. Every script therefore reads and checks first, and what follows its first mutation cannot fail:
-- the types of all keys it touches have been proven by reading them.

local FORMAT = '\1'
local CORRUPT = 'ZCORRUPT unreadable record'

local function milliseconds()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function encode(key, value, version, expiry, tombstone)
  return FORMAT .. cmsgpack.pack({key, value, version, expiry, tombstone})
end

-- The fields of a member, or nil when it is not one of ours.
local function decode(member)
  if string.sub(member, 1, 1) ~= FORMAT then return nil end
  local fine, fields, extra = pcall(cmsgpack.unpack, string.sub(member, 2))
  if not fine or extra ~= nil or type(fields) ~= 'table' or #fields ~= 5 then return nil end
  if type(fields[1]) ~= 'string' or type(fields[2]) ~= 'string' or type(fields[3]) ~= 'string'
    or type(fields[4]) ~= 'number' or type(fields[5]) ~= 'boolean' then return nil end
  return {key = fields[1], value = fields[2], version = fields[3], expiry = fields[4], tombstone = fields[5]}
end

local function is_live(row, now)
  return row ~= nil and not row.tombstone and (row.expiry == 0 or row.expiry > now)
end

-- The sequences that open snapshots show, ascending; and the ids of those that are over.
local function snapshots_at(snapshots, ends, now)
  local over = redis.call('ZRANGEBYSCORE', ends, '-inf', string.format('(%.17g', now))
  local gone = {}
  for _, id in ipairs(over) do gone[id] = true end
  local open = {}
  local entries = redis.call('ZRANGE', snapshots, 0, -1, 'WITHSCORES')
  for at = 1, #entries, 2 do
    if not gone[entries[at]] then open[#open + 1] = tonumber(entries[at + 1]) end
  end
  return open, over
end

local function forget(snapshots, ends, over)
  for _, id in ipairs(over) do
    redis.call('ZREM', snapshots, id)
    redis.call('ZREM', ends, id)
  end
end

-- Drop every member below `current` that no open snapshot shows; true when some had to stay (LO-061).
local function trim(record, current, open)
  if redis.call('ZCARD', record) == 1 then return false end
  local below = string.format('(%.17g', current)
  local kept = {}
  local any = false
  for _, boundary in ipairs(open) do
    if boundary < current then
      local found = redis.call('ZREVRANGEBYSCORE', record, boundary, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if #found > 0 then
        kept[found[2]] = true
        any = true
      end
    end
  end
  if not any then
    redis.call('ZREMRANGEBYSCORE', record, '-inf', below)
    return false
  end
  local members = redis.call('ZRANGEBYSCORE', record, '-inf', below, 'WITHSCORES')
  for at = 1, #members, 2 do
    if not kept[members[at + 1]] then redis.call('ZREM', record, members[at]) end
  end
  return true
end

-- Look at up to `limit` records whose time has come. Uses pcall throughout: a foreign value under a record key must not fail the
-- call that happens to come along.
local function tend(prefix, index, due, open, now, grace, retry, limit)
  local entries = redis.pcall('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, limit)
  if entries.err then return end
  for _, entry in ipairs(entries) do
    local record = prefix .. string.sub(entry, 1, 64)
    local top = redis.pcall('ZREVRANGE', record, 0, 0, 'WITHSCORES')
    local row = nil
    if not top.err and #top > 0 then row = decode(top[1]) end
    if row == nil then
      redis.call('ZREM', due, entry)
    elseif trim(record, tonumber(top[2]), open) then
      redis.call('ZADD', due, now + retry, entry)
    elseif row.tombstone or (row.expiry ~= 0 and row.expiry + grace <= now) then
      redis.call('DEL', record)
      redis.call('ZREM', index, string.sub(entry, 65))
      redis.call('ZREM', due, entry)
    elseif row.expiry ~= 0 then
      redis.call('ZADD', due, row.expiry + grace, entry)
    else
      redis.call('ZREM', due, entry)
    end
  end
end
