
for (const line of require('node:fs').readFileSync(0, 'utf8').trimEnd().split('\n')) {
  const argument = JSON.parse(line);
  console.log(Array.isArray(argument) ? providerKey(...argument) : fingerprint(argument).toString('hex'));
}
