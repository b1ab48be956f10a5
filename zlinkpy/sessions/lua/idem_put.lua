-- KEYS entry, live   ARGV key, session, input hash, holder, ttl ms, life ms   -> {1 inserted | 0 existing, now, fields…}
redis.call('ZSCORE', KEYS[2], ARGV[1])
local now = digits(millis())
local row = redis.call('HGETALL', KEYS[1])
if #row > 0 then return {0, now, row} end
redis.call(
  'HSET', KEYS[1], 'sid', ARGV[2], 'ih', ARGV[3], 'st', 'I', 'h', ARGV[4], 'ep', ARGV[4], 'c', now, 't', now, 'ttl', ARGV[5]
)
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('ZADD', KEYS[2], now, ARGV[1])
return {1, now, redis.call('HGETALL', KEYS[1])}
