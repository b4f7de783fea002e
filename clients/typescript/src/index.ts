/** The TypeScript client of Berth: every operation of its HTTP API. It needs fetch and nothing else, so that it runs on Node.js 20 and in browsers. */
import { Operations } from "./generated.js";
import type { BerthOptions } from "./options.js";
import { Transport } from "./runtime.js";

export * from "./generated.js";
export { BerthError, isBerthError } from "./errors.js";
export { ListCall } from "./list.js";
export type { BerthOptions, CallOptions } from "./options.js";
export type { Download, FollowOptions, StreamOptions, UploadBody } from "./streams.js";

/**
 * Calls one deployment with one key.
 *
 * A write without an `idempotencyKey` is given one, and is repeated with it when its answer is lost, so that it has one effect.
 */
export class Berth extends Operations {
  constructor(options: BerthOptions = {}) {
    super(new Transport(options));
  }
}
