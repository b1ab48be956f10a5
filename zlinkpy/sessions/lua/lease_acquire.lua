-- KEYS lease, fence, record   ARGV holder, attempt, duration ms, fence memory ms
-- -> {1, token, acquired at} or {0, holder, token, ms left}
local held = redis.call('HMGET', KEYS[1], 'h', 't', 'a', 'at')
local last = redis.call('GET', KEYS[2])
local recorded = redis.call('HGET', KEYS[3], 'fence')
local left = redis.call('PTTL', KEYS[1])
if left >= 0 then
  if not held[1] or not tonumber(held[2]) then return redis.error_reply(CORRUPT) end
  if ARGV[2] ~= '' and held[3] == ARGV[2] and held[1] == ARGV[1] then
    -- The caller takes its lease to begin now, so it must also end that much later.
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
    return {1, held[2], held[4] or '0'}
  end
  return {0, held[1], held[2], left}
end
local now = micros()
local token = now
for _, earlier in ipairs({tonumber(last) or 0, tonumber(recorded) or 0, tonumber(held[2]) or 0}) do
  if earlier >= token then token = earlier + 1 end
end
if token >= 9007199254740992 then return redis.error_reply(CORRUPT) end
token = digits(token)
local at = digits(math.floor(now / 1000))
redis.call('SET', KEYS[2], token, 'PX', ARGV[4])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'h', ARGV[1], 't', token, 'a', ARGV[2], 'at', at)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, token, at}
