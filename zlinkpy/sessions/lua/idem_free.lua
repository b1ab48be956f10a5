-- KEYS entry, live   ARGV key, [holder]   -> {1 or 0}. Without a holder: only a reservation that nobody holds.
redis.call('ZSCORE', KEYS[2], ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'st', 'h')
if row[1] ~= 'I' or row[2] ~= (ARGV[2] or false) then return {0} end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return {1}
