// Holds a whole session with one of the TypeScript SDKs and prints, as one line of JSON, what happened.
//
//   node session.mjs v1|v2|v2-modern URL [KEY]      KEY is read from BERTH_API_KEY where it is not given
//
// Exit code 1: a step failed; the JSON then has error and the steps before it.
import { randomUUID } from 'node:crypto';
import { connect } from './connect.mjs';

const [kind, url, key = process.env.BERTH_API_KEY] = process.argv.slice(2);
const report = { client: kind, steps: [] };

let client;

// call runs a tool. The text and the structured content must say the same; an error of the tool ends the session unless it is expected.
async function call(name, args, { fails = false, progress } = {}) {
  const options = progress ? { onprogress: progress } : undefined;
  const request = { name, arguments: args };
  const res = kind === 'v1' ? await client.callTool(request, undefined, options) : await client.callTool(request, options);
  const said = JSON.parse(res.content[0].text);
  if (Boolean(res.isError) !== fails) throw new Error(`${name}: ${res.content[0].text}`);
  if (fails && res.structuredContent !== undefined) throw new Error(`${name}: an error with structured content`);
  if (!fails && JSON.stringify(said) !== JSON.stringify(res.structuredContent)) throw new Error(`${name}: text and structured content differ`);
  report.steps.push({ tool: name, result: said });
  return said;
}

// follow reads what a process writes until its end.
async function follow(sandboxId, processId) {
  let text = '';
  for (let offset = 0, eof = false; !eof; ) {
    const part = await call('read_process_output', { sandboxId, processId, offset, waitSeconds: 10 });
    text += part.data;
    offset = part.nextOffset;
    eof = part.eof;
  }
  return text;
}

async function session() {
  client = await connect(kind, url, key);
  report.protocolVersion = client.getNegotiatedProtocolVersion?.();
  report.server = client.getServerVersion();
  report.instructions = (client.getInstructions() ?? '').length;
  report.tools = (await client.listTools()).tools.map((t) => t.name);

  const idempotencyKey = randomUUID();
  const made = await call('create_sandbox', { idempotencyKey, metadata: { by: kind } });
  const sandboxId = made.sandbox.id;
  try {
    const again = await call('create_sandbox', { idempotencyKey, metadata: { by: kind } });
    if (again.sandbox.id !== sandboxId || !again.replayed) throw new Error('the repeated create made a second sandbox');
    await call('run_command', { sandboxId, command: 'echo to-stdout; echo to-stderr >&2; exit 3' });
    await call('write_file', { sandboxId, path: 'hello/grüße.txt', data: 'Grüße <b>& "Küsse"\n' });
    await call('run_command', { sandboxId, command: 'cat hello/grüße.txt' });
    await call('read_file', { sandboxId, path: 'hello/grüße.txt' });
    await call('run_command', { sandboxId, command: 'seq 1 30000' });
    const middle = await call('run_command', { sandboxId, command: 'seq 1 4000' });
    report.recovered = await follow(sandboxId, middle.processId);
    const started = await call('start_process', { sandboxId, command: 'echo started; sleep 0.2; echo ended' });
    report.output = await follow(sandboxId, started.process.id);
    await call('read_file', { sandboxId, path: 'no/such/file' }, { fails: true });
    await call('kill_sandbox', { sandboxId }, { fails: true });
    await call('run_command', { sandboxId, command: 'sleep 0.1; echo done' }, { progress: () => {} });
  } finally {
    await call('delete_sandbox', { sandboxId });
  }
  await call('get_sandbox', { sandboxId }, { fails: true });
}

try {
  await session();
} catch (e) {
  report.error = String(e?.stack ?? e);
} finally {
  await client?.close();
}
process.stdout.write(JSON.stringify(report) + '\n', () => process.exit(report.error ? 1 : 0)); // a pipe is written later
