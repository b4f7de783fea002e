import { BerthError, errorOf } from "./errors.js";
import { type BerthOptions, type CallOptions, type Settings, settingsOf } from "./options.js";
import { type Prepared, prepare, type Route } from "./request.js";

const firstPauseMs = 250;
const mostPauseMs = 8_000;
const mostAskedMs = 60_000; // what a server may ask for and get waited for

/** An answer whose body is still to be read. The attempt's time goes on until done is called. */
export interface Answer {
  response: Response;
  done: () => void;
}

/** Makes requests, again where that is safe and helps. */
export class Sender {
  readonly settings: Settings;

  constructor(options: BerthOptions) {
    this.settings = settingsOf(options);
  }

  /** Makes an operation and gives its JSON. */
  async call<Out>(route: Route, input: object, options: CallOptions = {}): Promise<Out> {
    const request = prepare(this.settings.base, route, input);
    return this.repeat(request.repeatable, options, async () => {
      const { response, done } = await this.send(request, options);
      try {
        const text = await this.read(response, options);
        return unlessHeld(parse<Out>(text, response.status), response.status);
      } finally {
        done();
      }
    });
  }

  /** Tries until it is answered for good. What the network lost, 429, 502 and 503, and BUSY are tried again after the pause that the server asks for or a growing one. */
  async repeat<T>(repeatable: boolean, options: CallOptions, attempt: () => Promise<T>): Promise<T> {
    const attempts = Math.max(1, options.attempts ?? this.settings.attempts);
    for (let n = 1; ; n++) {
      try {
        return await attempt();
      } catch (e) {
        if (!(e instanceof BerthError) || n >= attempts || !repeatable || !again(e) || e.retryAfterMs > mostAskedMs) throw e;
        const grown = Math.min(firstPauseMs * 2 ** (n - 1), mostPauseMs);
        await pause(e.retryAfterMs > 0 ? e.retryAfterMs : grown / 2 + Math.random() * (grown / 2), options.signal, e);
      }
    }
  }

  /** Makes one attempt and gives an answer that is a success; everything else is a BerthError. */
  async send(request: Prepared, options: CallOptions, extra: { headers?: Record<string, string>; body?: BodyInit | null; endless?: boolean } = {}): Promise<Answer> {
    const headers: Record<string, string> = { accept: "application/json", ...extra.headers };
    if (request.json !== undefined) headers["content-type"] = "application/json";
    if (this.settings.key !== "") headers["authorization"] = `Bearer ${this.settings.key}`;
    if (!("window" in globalThis)) headers["user-agent"] = this.settings.userAgent;
    const timer = new AbortController();
    const ms = options.timeoutMs ?? this.settings.timeoutMs;
    const timeout = ms === Infinity ? undefined : setTimeout(() => timer.abort(new DOMException(`no answer within ${ms} ms`, "TimeoutError")), ms);
    const done = (): void => clearTimeout(timeout);
    const signal = options.signal === undefined ? timer.signal : AbortSignal.any([options.signal, timer.signal]);
    const body = request.json ?? extra.body ?? null;
    const init: RequestInit & { duplex?: "half" } = { method: request.method, headers, body, signal, redirect: "manual" };
    if (body instanceof ReadableStream) init.duplex = "half";
    try {
      const response = await this.settings.fetch(request.url, init);
      if (extra.endless === true) done();
      if (response.ok) return { response, done };
      if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
        throw new BerthError({ code: "INVALID_CONFIG", message: "the server's URL leads elsewhere", suggestion: "Use the address to which it leads as baseUrl.", status: response.status });
      }
      throw errorOf(response.status, response.headers, await this.read(response, options));
    } catch (cause) {
      done();
      throw this.lost(cause, options);
    }
  }

  async read(response: Response, options: CallOptions): Promise<string> {
    try {
      return await response.text();
    } catch (cause) {
      throw this.lost(cause, options);
    }
  }

  /** The error of an attempt without an answer. */
  lost(cause: unknown, options: CallOptions): BerthError {
    if (cause instanceof BerthError) return cause;
    if (options.signal?.aborted === true) {
      return new BerthError({ code: "TIMEOUT", message: "the call was ended before the server answered", cause: options.signal.reason });
    }
    const host = new URL(this.settings.base).origin;
    return new BerthError({ code: "UNAVAILABLE", message: `cannot reach ${host}`, suggestion: "Check that the server runs and that its URL is right.", cause });
  }
}

function parse<Out>(text: string, status: number): Out {
  try {
    return JSON.parse(text) as Out;
  } catch (cause) {
    throw new BerthError({ code: "UPSTREAM_ERROR", message: "the server's answer is no JSON", status, cause });
  }
}

/** A call that waits for a person's approval is no success yet: details say where to approve it and with which key to call again. */
function unlessHeld<Out>(out: Out, status: number): Out {
  const held = out as { status?: unknown; message?: unknown };
  if (status !== 202 || held.status !== "confirmation-required") return out;
  throw new BerthError({
    code: "CONFIRMATION_REQUIRED",
    message: typeof held.message === "string" ? held.message : "a person has to approve this call",
    suggestion: "Let a person open details.approveUrl, then call again with details.idempotencyKey and the same input.",
    details: { ...held },
    status,
  });
}

function again(e: BerthError): boolean {
  switch (e.status) {
    case 429:
    case 502:
    case 503:
      return true;
    case 409:
      return e.code === "BUSY" && e.retryAfterMs > 0;
    case 0:
      return e.code === "UNAVAILABLE";
  }
  return false;
}

/** Waits, or throws at once when the signal ends the call. */
export function pause(ms: number, signal: AbortSignal | undefined, cause: unknown): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = (): void => {
      clearTimeout(timer);
      reject(new BerthError({ code: "TIMEOUT", message: "the call was ended while it waited to try again", cause }));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", end);
      resolve();
    }, ms);
    if (signal?.aborted === true) end();
    else signal?.addEventListener("abort", end, { once: true });
  });
}
