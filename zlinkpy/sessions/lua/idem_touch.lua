-- KEYS entry, live   ARGV key, holder, retention ms   -> {1 or 0}
redis.call('ZSCORE', KEYS[2], ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'st', 'h', 'ttl')
if row[1] ~= 'I' or row[2] ~= ARGV[2] then return {0} end
local ttl = tonumber(row[3])
if not ttl then return redis.error_reply(CORRUPT) end
local now = digits(millis())
redis.call('HSET', KEYS[1], 't', now)
redis.call('PEXPIRE', KEYS[1], digits(ttl + tonumber(ARGV[3])))
redis.call('ZADD', KEYS[2], now, ARGV[1])
return {1}
