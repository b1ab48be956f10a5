-- KEYS live   ARGV entry key prefix, older than ms, limit   -> {now, {key, fields}, …}, oldest first
--
-- `live` lists held entries in flight by the time of their last touch, nothing else, so that reservations without a
-- holder cannot fill the limit. A member whose entry is gone, done or unreadable is dropped on the way; the entry
-- itself is left to its expiry.
local now = millis()
local before = '(' .. digits(now - tonumber(ARGV[2]))
local limit, offset, found = tonumber(ARGV[3]), 0, {digits(now)}
while #found <= limit do
  local page = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', before, 'LIMIT', offset, 64)
  if #page == 0 then break end
  for _, key in ipairs(page) do
    local row = redis.pcall('HMGET', ARGV[1] .. key, 'st', 'h', 't', 'ttl', 'sid', 'ih', 'ep', 'c')
    local fine = row.err == nil and row[1] == 'I' and row[2] and tonumber(row[3]) and tonumber(row[4])
      and row[5] and row[6] and row[7] and tonumber(row[8])
    if not fine then
      redis.call('ZREM', KEYS[1], key)
    elseif #found <= limit then
      found[#found + 1] = {key, redis.call('HGETALL', ARGV[1] .. key)}
      offset = offset + 1
    else
      break
    end
  end
end
return found
