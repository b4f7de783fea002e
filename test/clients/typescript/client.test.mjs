// Tests of the TypeScript client as it is published, against a whole server. Its faults are asked for by the name of what is made: see faults in
// typescript_test.go.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Berth, BerthError, isBerthError } from "berth";

const berth = new Berth(); // BERTH_URL and BERTH_API_KEY

const made = [];
async function sandbox(name, options) {
  const out = await berth.sandboxes.create({ name }, options);
  made.push(out.sandbox.id);
  return out;
}

test.after(async () => {
  for (const sandboxId of made) await berth.sandboxes.delete({ sandboxId });
});

test("a first session", async () => {
  const { sandbox: box, ready, idempotencyKey } = await sandbox("session");
  assert.equal(ready, true);
  assert.match(idempotencyKey, /^[0-9a-f-]{36}$/);
  const sandboxId = box.id;
  const ran = await berth.sandboxes.exec({ sandboxId, argv: ["sh", "-c", "echo out; echo err >&2; exit 3"] });
  assert.deepEqual([ran.exitCode, ran.stdout, ran.stderr], [3, "out\n", "err\n"]);
  const text = "Grüße \u{1F40B} & <b>\n";
  await berth.files.write({ sandboxId, path: "a b/ü.txt", data: text });
  const file = await berth.files.read({ sandboxId, path: "a b/ü.txt" });
  assert.equal(file.data, text);
  const started = await berth.processes.start({ sandboxId, command: "echo begun; exec cat", openStdin: true });
  const processId = started.process.id;
  await berth.processes.input({ sandboxId, processId, data: "typed\n", eof: true });
  let seen = "";
  for (let offset = 0; !seen.includes("typed"); ) {
    const part = await berth.processes.output({ sandboxId, processId, offset, waitSeconds: 10 });
    seen += part.data;
    offset = part.nextOffset;
  }
  assert.equal(seen, "begun\ntyped\n");
});

test("a reply lost after the server acted: the same sandbox, not two", async () => {
  const out = await sandbox("dropped-reply");
  assert.equal(out.replayed, true, "the second attempt was a replay");
  const names = [];
  for await (const s of berth.sandboxes.list({ name: "dropped-reply" })) names.push(s.id);
  assert.deepEqual(names, [out.sandbox.id]);
});

test("a reply cut in the middle: the same sandbox, not two", async () => {
  const out = await sandbox("cut-reply");
  assert.equal(out.replayed, true);
  const { items } = await berth.sandboxes.list({ name: "cut-reply" });
  assert.equal(items.length, 1);
});

test("an attempt that hangs is given up and made again", async () => {
  const out = await sandbox("hung-reply", { timeoutMs: 1500 });
  assert.equal(out.replayed, true);
  assert.equal((await berth.sandboxes.list({ name: "hung-reply" })).items.length, 1);
});

test("retryAfterMs is waited for", async () => {
  const began = performance.now();
  const out = await sandbox("limited-twice");
  const took = performance.now() - began;
  assert.ok(took >= 2 * 300, `after ${took} ms`);
  assert.equal(out.replayed, undefined);
});

test("one attempt is one attempt", async () => {
  await assert.rejects(berth.sandboxes.create({ name: "limited-once" }, { attempts: 1 }), (e) => isBerthError(e, "RATE_LIMITED") && e.retryAfterMs === 300 && e.status === 429);
});

test("errors say what to do", async () => {
  const e = await berth.sandboxes.get({ sandboxId: "sbx_00000000000000000000" }).then(
    () => assert.fail("found"),
    (e) => e,
  );
  assert.ok(e instanceof BerthError && e instanceof Error);
  assert.equal(e.code, "NOT_FOUND");
  assert.equal(e.status, 404);
  assert.notEqual(e.suggestion, "");
  assert.match(e.requestId, /^req_/);
  assert.ok(isBerthError(e) && isBerthError(e, "NOT_FOUND") && !isBerthError(e, "BUSY"));
  await assert.rejects(berth.sandboxes.create({ nam: "x" }), (e) => isBerthError(e, "INVALID_INPUT") && e.details.path === "nam");
  await assert.rejects(new Berth({ apiKey: "wrong" }).account.get(), (e) => isBerthError(e, "UNAUTHENTICATED"));
  await assert.rejects(new Berth({ baseUrl: "http://127.0.0.1:1", attempts: 2 }).account.get(), (e) => isBerthError(e, "UNAVAILABLE") && e.status === 0 && e.cause !== undefined);
  await assert.rejects(new Berth({ baseUrl: `${process.env.BERTH_URL}/elsewhere` }).account.get(), (e) => isBerthError(e, "INVALID_CONFIG"));
});

test("what is refused here is never sent", async () => {
  const none = new Berth({ fetch: () => assert.fail("a request was sent") });
  for (const sandboxId of ["", ".", "..", undefined]) {
    await assert.rejects(async () => none.sandboxes.get({ sandboxId }), (e) => isBerthError(e, "INVALID_INPUT"));
  }
  for (const o of [{ baseUrl: "nowhere" }, { baseUrl: "ftp://a" }, { baseUrl: "https://user:pw@a" }, { baseUrl: "https://a?key=1" }, { apiKey: "a\nb" }]) {
    assert.throws(() => new Berth(o), (e) => isBerthError(e, "INVALID_CONFIG") && !e.message.includes("pw") && !e.message.includes("a\nb"));
  }
});

test("a repetition has the same key and the same body", async () => {
  const bodies = [];
  const flaky = new Berth({
    fetch: async (url, init) => {
      bodies.push(init.body);
      if (bodies.length < 3) throw new TypeError("fetch failed");
      return fetch(url, init);
    },
  });
  const out = await flaky.sandboxes.create({ name: "flaky" });
  made.push(out.sandbox.id);
  assert.equal(bodies.length, 3);
  assert.equal(new Set(bodies).size, 1);
  assert.equal(JSON.parse(bodies[0]).idempotencyKey, out.idempotencyKey);
});

test("output is followed to its end, also where the connection breaks", async () => {
  const { sandbox: box } = await sandbox("followed");
  const sandboxId = box.id;
  const { process } = await berth.processes.start({ sandboxId, command: "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); done; echo err >&2; exit 4" });
  const got = { stdout: "", stderr: "" };
  let exit;
  for await (const m of berth.processes.follow({ sandboxId, processId: process.id })) {
    if (m.event === "exit") exit = m.data;
    else {
      assert.equal(m.data.offset, Buffer.byteLength(got[m.event]), "no piece twice and none missing");
      got[m.event] += m.data.data;
    }
  }
  assert.equal(got.stdout, Array.from({ length: 300 }, (_, i) => `line ${i}\n`).join(""));
  assert.equal(got.stderr, "err\n");
  assert.equal(exit.exitCode, 4);
  const control = new AbortController();
  const endless = await berth.processes.start({ sandboxId, command: "echo begun; sleep 60" });
  await assert.rejects(
    async () => {
      for await (const m of berth.processes.follow({ sandboxId, processId: endless.process.id }, { signal: control.signal })) {
        assert.equal(m.event, "stdout");
        control.abort();
      }
    },
    (e) => isBerthError(e, "TIMEOUT"),
  );
  await assert.rejects(async () => {
    for await (const m of berth.processes.follow({ sandboxId, processId: "proc_00000000000000000000" })) assert.fail(m);
  }, (e) => isBerthError(e, "NOT_FOUND"));
});

test("files of any size go up and down as streams", async () => {
  const { sandbox: box } = await sandbox("streams");
  const sandboxId = box.id;
  const bytes = crypto.getRandomValues(new Uint8Array(65536));
  const big = new Uint8Array(5 << 20).map((_, i) => bytes[i % 65521]);
  const up = await berth.files.upload({ sandboxId, path: "big.bin" }, big);
  assert.equal(up.file.size, big.length);
  const digest = Buffer.from(await crypto.subtle.digest("SHA-256", big)).toString("hex");
  assert.equal(up.sha256, digest);
  const down = await berth.files.download({ sandboxId, path: "big.bin" });
  assert.equal(down.size, big.length);
  assert.ok(Buffer.from(await down.bytes()).equals(Buffer.from(big)));
  const part = await berth.files.download({ sandboxId, path: "big.bin" }, { headers: { range: "bytes=10-19" } });
  assert.ok(Buffer.from(await part.bytes()).equals(Buffer.from(big.slice(10, 20))));
  const streamed = await berth.files.upload({ sandboxId, path: "streamed.txt" }, new Blob(["from a ", "stream\n"]).stream());
  assert.equal(streamed.file.size, 14);
  assert.equal(await (await berth.files.download({ sandboxId, path: "streamed.txt" })).text(), "from a stream\n");
  await assert.rejects(berth.files.upload({ sandboxId, path: "big.bin" }, "x", { headers: { "if-match": '"another"' } }), (e) => isBerthError(e, "INVALID_STATE") && e.reason === "changed");
  await assert.rejects(berth.files.download({ sandboxId, path: "none" }), (e) => isBerthError(e, "NOT_FOUND"));
});

test("lists go through every page", async () => {
  for (let i = 0; i < 3; i++) await sandbox(`page-${i}`);
  const metadata = { made: "by the test", "a.b": "c d" };
  const out = await berth.sandboxes.create({ name: "labelled", metadata });
  made.push(out.sandbox.id);
  const all = [];
  let pages = 0;
  for await (const page of berth.sandboxes.list({ limit: 2 }).pages()) {
    pages++;
    all.push(...page.items.map((s) => s.name));
  }
  assert.ok(pages >= 2 && all.length >= 4 && new Set(all).size === all.length, `${pages} pages: ${all}`);
  const one = await berth.sandboxes.list({ metadata, state: ["running", "stopped"] });
  assert.deepEqual(one.items.map((s) => s.name), ["labelled"]);
  assert.equal(one.nextCursor, null);
  for await (const s of berth.sandboxes.list({ limit: 1 })) {
    assert.ok(s.id);
    break; // nothing more is asked for
  }
});

test("a signal ends a call", async () => {
  const { sandbox: box } = await sandbox("ended");
  const control = new AbortController();
  const running = berth.sandboxes.exec({ sandboxId: box.id, command: "sleep 60" }, { signal: control.signal });
  setTimeout(() => control.abort(), 200);
  await assert.rejects(running, (e) => isBerthError(e, "TIMEOUT") && e.status === 0);
  const gone = AbortSignal.abort();
  await assert.rejects(berth.account.get({ signal: gone }), (e) => isBerthError(e, "TIMEOUT"));
});
