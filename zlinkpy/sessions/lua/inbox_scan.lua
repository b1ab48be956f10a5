-- KEYS index   ARGV older than ms, limit, [score, session after which to go on]   -> {session, score, …} by age
local function is_after(text, place)
  for at = 1, math.min(#text, #place) do
    local one, other = string.byte(text, at), string.byte(place, at)
    if one ~= other then return one > other end
  end
  return #text > #place
end

local before = '(' .. digits(millis() - tonumber(ARGV[1]))
local limit, from, offset, found = tonumber(ARGV[2]), ARGV[3] or '-inf', 0, {}
while #found < 2 * limit do
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], from, before, 'WITHSCORES', 'LIMIT', offset, 256)
  if #page == 0 then break end
  for at = 1, #page, 2 do
    local seen = ARGV[3] and page[at + 1] == ARGV[3] and not is_after(page[at], ARGV[4])
    if not seen and #found < 2 * limit then
      found[#found + 1] = page[at]
      found[#found + 1] = page[at + 1]
    end
  end
  offset = offset + 256
end
return found
