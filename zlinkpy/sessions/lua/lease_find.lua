-- KEYS lease   -> {0} or {1, holder, token, ms left}. A lease without expiry is nobody's: no script leaves one behind.
local held = redis.call('HMGET', KEYS[1], 'h', 't')
local left = redis.call('PTTL', KEYS[1])
if left < 0 then return {0} end
if not held[1] or not tonumber(held[2]) then return redis.error_reply(CORRUPT) end
return {1, held[1], held[2], left}
