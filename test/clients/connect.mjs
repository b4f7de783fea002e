// Connects one of the TypeScript SDKs: v1, v2 as it speaks to older servers, or v2 in the revision 2026-07-28.
export async function connect(kind, url, key) {
  const info = { name: `berth-test-${kind}`, version: '1.0.0' };
  const headers = { Authorization: `Bearer ${key}` };
  if (kind === 'v1') {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    const client = new Client(info);
    await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
    return client;
  }
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const mode = kind === 'v2-modern' ? { pin: '2026-07-28' } : 'legacy';
  const client = new Client(info, { versionNegotiation: { mode } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  return client;
}
