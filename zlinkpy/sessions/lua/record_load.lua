-- KEYS record   -> {0} or {1, ref, state, version, attrs}
local row = redis.call('HMGET', KEYS[1], 'sid', 'ref', 'state', 'ver', 'attrs')
if not row[1] then return {0} end
return {1, row[2], row[3], row[4], row[5]}
