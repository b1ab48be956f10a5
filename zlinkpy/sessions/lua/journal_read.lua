-- KEYS journal   ARGV first number, limit   -> {number, grade, payload, ...}
local answer = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])) do
  answer[#answer + 1] = string.match(entry[1], '^(%d+)-')
  answer[#answer + 1] = field(entry[2], 'g')
  answer[#answer + 1] = field(entry[2], 'p')
end
return answer
