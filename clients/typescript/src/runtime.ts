import type { BerthError } from "./errors.js";
import { prepare, type Route } from "./request.js";
import { dataOf, type Download, events, type FollowOptions, type StreamOptions, type UploadBody } from "./streams.js";
import { type Answer, pause, Sender } from "./transport.js";

export { ListCall } from "./list.js";
export type { CallOptions } from "./options.js";
export type { Download, FollowOptions, StreamOptions, UploadBody } from "./streams.js";

/** How long a followed stream may say nothing, not even that it lives. */
const silenceMs = 60_000;

/** How calls and streams are made. */
export class Transport extends Sender {
  /** Opens a body that comes from the server. What breaks after its first byte is an error of the stream. */
  async download(route: Route, input: object, options: StreamOptions = {}): Promise<Download> {
    const request = prepare(this.settings.base, route, input);
    const { response } = await this.repeat(true, options, () => this.send(request, options, { headers: { accept: "*/*", ...options.headers }, endless: true }));
    const stream = response.body ?? new Blob([]).stream();
    const length = response.headers.get("content-length");
    return {
      size: length === null ? undefined : Number(length),
      etag: response.headers.get("etag") ?? undefined,
      headers: response.headers,
      stream,
      bytes: async () => new Uint8Array(await new Response(stream).arrayBuffer()),
      text: () => new Response(stream).text(),
    };
  }

  /** Sends a body, however long that takes where the call has no time of its own. It is sent again only where it is not a stream. */
  async upload<Out>(route: Route, input: object, body: UploadBody, options: StreamOptions = {}): Promise<Out> {
    const request = { ...prepare(this.settings.base, { ...route, method: "GET" }, input), method: route.method }; // its arguments are in the query
    const headers = { "content-type": "application/octet-stream", ...options.headers };
    return this.repeat(!(body instanceof ReadableStream), options, async () => {
      const answer: Answer = await this.send(request, { timeoutMs: Infinity, ...options }, { headers, body, endless: true });
      return JSON.parse(await this.read(answer.response, options)) as Out;
    });
  }

  /** Follows a stream of events until the one that ends it. Where the connection breaks it goes on after the last event that came. */
  async *follow<Message extends { event: string; data: unknown }>(
    route: Route,
    input: object,
    how: { when: string; end: string },
    options: FollowOptions = {},
  ): AsyncGenerator<Message, void, undefined> {
    const request = prepare(this.settings.base, route, how.when === "" ? input : { ...input, [how.when]: true });
    const attempts = Math.max(1, options.attempts ?? this.settings.attempts);
    let last = options.lastEventId ?? "";
    for (let broken = 0; ; ) {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (last !== "") headers["last-event-id"] = last;
      const silent = new AbortController();
      const signal = options.signal === undefined ? silent.signal : AbortSignal.any([options.signal, silent.signal]);
      const { response } = await this.repeat(true, options, () => this.send(request, { ...options, signal }, { headers, endless: true }));
      const giveUp = (): void => silent.abort(new DOMException(`nothing came for ${silenceMs} ms`, "TimeoutError"));
      let timer = setTimeout(giveUp, silenceMs);
      const alive = (): void => {
        clearTimeout(timer);
        timer = setTimeout(giveUp, silenceMs);
      };
      let cause: unknown;
      try {
        for await (const e of events(response.body ?? new Blob([]).stream(), alive)) {
          if (e.id !== "") last = e.id;
          broken = 0;
          yield { event: e.event, data: dataOf(e) } as Message;
          if (e.event === how.end) return;
        }
      } catch (e) {
        cause = e;
      } finally {
        clearTimeout(timer);
      }
      const error: BerthError = this.lost(cause ?? new Error("the stream ended early"), options);
      if (error.code !== "UNAVAILABLE" || ++broken >= attempts) throw error;
      await pause(250 * 2 ** (broken - 1), options.signal, error);
    }
  }
}
