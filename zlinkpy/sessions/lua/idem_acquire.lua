-- KEYS entry, live   ARGV key, holder, ttl ms, life ms   -> {1 or 0}
redis.call('ZSCORE', KEYS[2], ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'st', 'h')
if row[1] ~= 'I' or row[2] then return {0} end
local now = digits(millis())
redis.call('HSET', KEYS[1], 'h', ARGV[2], 't', now, 'ttl', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], now, ARGV[1])
return {1}
