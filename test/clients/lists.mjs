// Works with a list of tools other than the endpoint's own and prints, as one line of JSON, what is listed and what the calls gave.
//
//   node lists.mjs v1|v2|v2-modern URL toolset|compact      the key is read from BERTH_API_KEY
import { connect } from './connect.mjs';

const [kind, url, form] = process.argv.slice(2);
const report = { tools: [], results: {} };
const client = await connect(kind, url, process.env.BERTH_API_KEY);

async function call(label, name, args) {
  const request = { name, arguments: args };
  const res = kind === 'v1' ? await client.callTool(request, undefined) : await client.callTool(request);
  const said = JSON.parse(res.content[0].text);
  report.results[label] = { isError: Boolean(res.isError), ...said };
  return said;
}

try {
  report.tools = (await client.listTools()).tools.map((t) => t.name);
  if (form === 'compact') {
    const { sandbox } = await call('create', 'sandboxes', { action: 'create' });
    const sandboxId = sandbox.id;
    await call('write', 'files', { action: 'write', sandboxId, path: 'a.txt', data: 'one\n' });
    await call('exec', 'processes', { action: 'exec', sandboxId, command: 'cat a.txt' });
    await call('noAction', 'processes', { sandboxId, command: 'cat a.txt' });
    await call('wrongInput', 'processes', { action: 'exec', sandboxId, comand: 'cat a.txt' });
    await call('oldName', 'kill_sandbox', { sandboxId });
    await call('delete', 'sandboxes', { action: 'delete', sandboxId });
  } else {
    await call('outside', 'create_sandbox', {});
    await call('oldName', 'sandbox_create', {});
  }
} catch (e) {
  report.error = String(e?.stack ?? e);
} finally {
  await client.close();
}
process.stdout.write(JSON.stringify(report) + '\n', () => process.exit(report.error ? 1 : 0));
