import { BerthError } from "./errors.js";

/** How a client reaches its deployment. */
export interface BerthOptions {
  /** The address of the deployment, such as https://berth.example.com. Default: BERTH_URL of the environment. */
  baseUrl?: string | undefined;
  /** A key of the deployment. Default: BERTH_API_KEY of the environment. */
  apiKey?: string | undefined;
  /** How often a call is tried at most. Default: 4; 1 is no repetition. */
  attempts?: number | undefined;
  /** How long one attempt may take, in milliseconds. Default: 100,000; the server itself answers within 75 seconds. */
  timeoutMs?: number | undefined;
  /** What the program calls itself. Browsers send their own. */
  userAgent?: string | undefined;
  /** Makes the requests. Default: the global fetch. */
  fetch?: typeof fetch | undefined;
}

/** What one call may have of its own. */
export interface CallOptions {
  /** Ends the call. An effect that has begun goes on. */
  signal?: AbortSignal | undefined;
  attempts?: number | undefined;
  timeoutMs?: number | undefined;
}

/** A client's options, whole and checked. */
export interface Settings {
  base: string;
  key: string;
  attempts: number;
  timeoutMs: number;
  userAgent: string;
  fetch: typeof fetch;
}

function environment(name: string): string | undefined {
  const process = (globalThis as { process?: { env?: Record<string, string | undefined> } }).process;
  return process?.env?.[name];
}

export function settingsOf(o: BerthOptions): Settings {
  const given = o.baseUrl ?? environment("BERTH_URL") ?? "";
  const refuse = (message: string, suggestion: string): never => {
    throw new BerthError({ code: "INVALID_CONFIG", message, suggestion });
  };
  let url: URL | undefined;
  try {
    url = new URL(given);
  } catch {
    // told below
  }
  // The URL is not repeated: it may hold what does not belong into it.
  if (url === undefined || !/^https?:$/.test(url.protocol) || url.username !== "" || url.password !== "" || url.search !== "" || url.hash !== "") {
    return refuse("the server's URL is not of the form https://HOST[:PORT]", "Give baseUrl, or set BERTH_URL.");
  }
  const key = o.apiKey ?? environment("BERTH_API_KEY") ?? "";
  if (!/^[!-~]*$/.test(key)) {
    return refuse("the key has characters that no key has", "Copy the key again, without spaces or line ends.");
  }
  return {
    base: url.origin + url.pathname.replace(/\/+$/, ""),
    key,
    attempts: Math.max(1, o.attempts ?? 4),
    timeoutMs: o.timeoutMs ?? 100_000,
    userAgent: o.userAgent ?? "berth-typescript",
    fetch: o.fetch ?? ((input, init) => globalThis.fetch(input, init)),
  };
}
