-- Second half of a scan page: the rows of the keys that `walk` named, as the snapshot shows them.
-- KEYS: snapshots, ends, then records in key order.
-- ARGV: snapshot id, life ms, item limit, byte budget, overhead per item, '1' when the walk reached the end of the index.
-- Returns {0} when the snapshot is gone, else {1, time of the snapshot, 1 if more follow, keys used, member...}.

local id, life = ARGV[1], tonumber(ARGV[2])
local limit, budget, overhead, last = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
local now = milliseconds()
local boundary, ending = redis.call('ZSCORE', KEYS[1], id), redis.call('ZSCORE', KEYS[2], id)
if not boundary or not ending or tonumber(ending) < now then return {0} end
local taken = tonumber(ending) - life

local members = {}
local used = #KEYS - 2
local more = 0
for at = 1, #KEYS - 2 do
  local found = redis.call('ZREVRANGEBYSCORE', KEYS[2 + at], boundary, '-inf', 'LIMIT', 0, 1)
  if #found > 0 then
    local row = decode(found[1])
    if row == nil then return redis.error_reply(CORRUPT) end
    if is_live(row, taken) then
      budget = budget - overhead - #row.key - #row.value - #row.version
      if #members == limit or (budget < 0 and #members > 0) then
        used = at - 1
        more = 1
        break
      end
      members[#members + 1] = found[1]
    end
  end
end
if more == 0 and not last then more = 1 end
if more == 0 then
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZREM', KEYS[2], id)
end
local reply = {1, taken, more, used}
for _, member in ipairs(members) do reply[#reply + 1] = member end
return reply
