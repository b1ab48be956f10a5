-- First half of a scan page: the snapshot and the next logical keys. The record of a key is named by its SHA-256, which scripts
-- cannot compute in reasonable time, so the caller names the records and asks `page`.
-- KEYS: index, sequence, due, snapshots, ends.
-- ARGV: record prefix, snapshot id, '1' to open it, first bound, last bound, number of keys, life ms, grace ms, retry ms, clean-up limit.
-- Returns {0} when the snapshot is gone, else {1, key...}.

local index, sequence, due, snapshots, ends = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local prefix, id, opens = ARGV[1], ARGV[2], ARGV[3] == '1'
local grace, retry, limit = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local now = milliseconds()

redis.call('ZCARD', due)
local open, over = snapshots_at(snapshots, ends, now)
local counted = tonumber(redis.call('GET', sequence) or '0')
if counted == nil then return redis.error_reply(CORRUPT) end
local keys = redis.call('ZRANGEBYLEX', index, ARGV[4], ARGV[5], 'LIMIT', 0, ARGV[6])

forget(snapshots, ends, over)
if opens then
  redis.call('ZADD', snapshots, counted, id)
  redis.call('ZADD', ends, now + tonumber(ARGV[7]), id)
  open[#open + 1] = counted
elseif not redis.call('ZSCORE', snapshots, id) then
  return {0}
end
tend(prefix, index, due, open, now, grace, retry, limit)
table.insert(keys, 1, 1)
return keys
