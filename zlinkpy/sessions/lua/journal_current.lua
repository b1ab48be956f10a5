-- KEYS current   -> {} or {turn}
local turn = redis.call('GET', KEYS[1])
if turn then return {turn} end
return {}
