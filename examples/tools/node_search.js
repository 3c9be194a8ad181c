#!/usr/bin/env node
const chunks = [];
process.stdin.on("data", (chunk) => chunks.push(chunk));
process.stdin.on("end", () => {
  const args = JSON.parse(Buffer.concat(chunks).toString());
  const result = { result: `You searched for: ${args.query}` };
  process.stdout.write(JSON.stringify(result));
});
