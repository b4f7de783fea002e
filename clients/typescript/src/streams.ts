import { BerthError } from "./errors.js";
import type { CallOptions } from "./options.js";

/** What can be sent: bytes, text, or a stream, which can be sent only once. */
export type UploadBody = Uint8Array<ArrayBuffer> | ArrayBuffer | Blob | string | ReadableStream<Uint8Array>;

/** What comes back: its bytes as a stream, or all at once. */
export interface Download {
  /** In bytes, where the server says so. */
  readonly size: number | undefined;
  readonly etag: string | undefined;
  readonly headers: Headers;
  readonly stream: ReadableStream<Uint8Array>;
  bytes(): Promise<Uint8Array>;
  text(): Promise<string>;
}

/** How bytes are sent or fetched. */
export interface StreamOptions extends CallOptions {
  /** Headers that the route looks at, such as range, if-match or content-sha256. */
  headers?: Record<string, string> | undefined;
}

/** How a stream of events is followed. */
export interface FollowOptions extends CallOptions {
  /** The id of the last event that was seen, to go on after it. */
  lastEventId?: string | undefined;
}

/** One server-sent event. */
export interface ServerEvent {
  event: string;
  data: string;
  /** The id of the last event so far, which may be an earlier one's. */
  id: string;
}

/** Divides a body into server-sent events. What is not complete at its end is dropped. Whatever comes, a comment too, is told to alive. */
export async function* events(body: ReadableStream<Uint8Array>, alive: () => void): AsyncGenerator<ServerEvent, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  let id = "";
  let event = "";
  let data: string[] = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      buffer += decoder.decode(value, { stream: true });
      for (;;) {
        const m = /\r\n|\n|\r(?!$)/.exec(buffer);
        if (m === null) break;
        const line = buffer.slice(0, m.index);
        buffer = buffer.slice(m.index + m[0].length);
        if (line === "") {
          if (data.length > 0) yield { event: event === "" ? "message" : event, data: data.join("\n"), id };
          event = "";
          data = [];
          continue;
        }
        const colon = line.indexOf(":");
        const name = colon < 0 ? line : line.slice(0, colon);
        const rest = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (name === "event") event = rest;
        else if (name === "data") data.push(rest);
        else if (name === "id") id = rest;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

/** The data of an event, which is JSON. */
export function dataOf(e: ServerEvent): unknown {
  try {
    return JSON.parse(e.data);
  } catch (cause) {
    throw new BerthError({ code: "UPSTREAM_ERROR", message: "an event of the server is no JSON", cause });
  }
}
