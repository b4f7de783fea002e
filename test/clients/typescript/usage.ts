// What a program in TypeScript may write, and what the compiler must refuse.
import { Berth, BerthError, type ErrorCode, isBerthError, type Sandbox } from "berth";

export async function use(): Promise<Sandbox[]> {
  const berth = new Berth({ baseUrl: "https://berth.example.com", apiKey: "key", attempts: 2, timeoutMs: 1000 });
  const { sandbox, ready }: { sandbox: Sandbox; ready: boolean } = await berth.sandboxes.create({ name: "a", onIdle: "stop", metadata: { a: "b" } }, { signal: AbortSignal.timeout(1000) });
  const disk: number | null = sandbox.resources.diskGiB;
  const all: Sandbox[] = ready && disk !== 0 ? [sandbox] : [];
  for await (const s of berth.sandboxes.list({ state: ["running"] })) all.push(s);
  const cursor: string | null = (await berth.sandboxes.list()).nextCursor;
  const out = await berth.sandboxes.exec({ sandboxId: sandbox.id, command: "true" });
  const code: number | undefined = out.exitCode;
  try {
    await berth.files.read({ sandboxId: sandbox.id, path: cursor ?? String(code) });
  } catch (e) {
    if (isBerthError(e, "NOT_FOUND")) {
      const known: ErrorCode | (string & {}) = e.code;
      throw new BerthError({ code: known, message: e.suggestion + e.requestId });
    }
  }
  // @ts-expect-error a member that no input has
  await berth.sandboxes.create({ nam: "a" });
  // @ts-expect-error a value that is none of its values
  await berth.sandboxes.create({ onIdle: "explode" });
  // @ts-expect-error without what is required
  await berth.sandboxes.get({});
  // @ts-expect-error no code of an error
  isBerthError(null, "NOT_THERE");
  return all;
}
