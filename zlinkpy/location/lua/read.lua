-- Current members of several records.
-- KEYS: records. ARGV: byte budget. Returns {now, entry...}: a member, '' for none, 0 for a key of another type. Stops after the
-- entry that reaches the budget, so it may answer fewer than asked; the caller asks for the rest.

local reply = {milliseconds()}
local budget = tonumber(ARGV[1])
for _, record in ipairs(KEYS) do
  local top = redis.pcall('ZREVRANGE', record, 0, 0)
  if top.err then
    if string.sub(top.err, 1, 9) ~= 'WRONGTYPE' then return top end
    reply[#reply + 1] = 0
  else
    local member = top[1] or ''
    reply[#reply + 1] = member
    budget = budget - #member
    if budget <= 0 then break end
  end
end
return reply
