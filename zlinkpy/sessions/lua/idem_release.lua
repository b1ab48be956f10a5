-- KEYS entry, live   ARGV key, holder, ttl ms   -> {1 or 0}
redis.call('ZSCORE', KEYS[2], ARGV[1])
local row = redis.call('HMGET', KEYS[1], 'st', 'h')
if row[1] ~= 'I' or row[2] ~= ARGV[2] then return {0} end
redis.call('HDEL', KEYS[1], 'h')
redis.call('HSET', KEYS[1], 't', digits(millis()), 'ttl', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('ZREM', KEYS[2], ARGV[1])
return {1}
