import type { ErrorCode } from "./generated.js";

/** What is known of a failed call. */
export interface ErrorFields {
  code: ErrorCode | (string & {});
  message: string;
  suggestion?: string | undefined;
  reason?: string | undefined;
  requestId?: string | undefined;
  retryAfterMs?: number | undefined;
  details?: Record<string, unknown> | undefined;
  status?: number | undefined;
  cause?: unknown;
}

/**
 * A call that was refused or failed. `code` is one of the API's stable codes; a server that cannot be reached is `UNAVAILABLE` with `status` 0, a call
 * that its caller ended is `TIMEOUT` with `status` 0. `suggestion` says what to do about it, and `requestId` names the request in the server's logs.
 */
export class BerthError extends Error {
  override readonly name = "BerthError";
  readonly code: ErrorCode | (string & {});
  readonly suggestion: string;
  /** Tells cases of one code apart. */
  readonly reason: string;
  readonly requestId: string;
  /** How long to wait before trying again; 0 where the server says nothing. */
  readonly retryAfterMs: number;
  readonly details: Record<string, unknown>;
  /** Of HTTP; 0 where nothing answered. */
  readonly status: number;

  constructor(f: ErrorFields) {
    super(f.message, f.cause === undefined ? undefined : { cause: f.cause });
    this.code = f.code;
    this.suggestion = f.suggestion ?? "";
    this.reason = f.reason ?? "";
    this.requestId = f.requestId ?? "";
    this.retryAfterMs = f.retryAfterMs ?? 0;
    this.details = f.details ?? {};
    this.status = f.status ?? 0;
  }
}

/** Whether something that was thrown is a BerthError, of the given code where one is given. */
export function isBerthError(e: unknown, code?: ErrorCode): e is BerthError {
  return e instanceof BerthError && (code === undefined || e.code === code);
}

const byStatus: Record<number, ErrorCode> = {
  401: "UNAUTHENTICATED",
  403: "FORBIDDEN",
  404: "NOT_FOUND",
  429: "RATE_LIMITED",
  503: "UNAVAILABLE",
  504: "TIMEOUT",
};

/** The error of an answer that is no success. What is not in the API's form, such as a proxy's page, gets the code of its status. */
export function errorOf(status: number, headers: Headers, text: string): BerthError {
  const seconds = Number(headers.get("retry-after"));
  const wait = Number.isFinite(seconds) && seconds > 0 ? seconds * 1000 : 0;
  try {
    const e = (JSON.parse(text) as { error?: ErrorFields }).error;
    if (e !== undefined && typeof e.code === "string" && typeof e.message === "string") {
      return new BerthError({ ...e, status, retryAfterMs: e.retryAfterMs || wait });
    }
  } catch {
    // it is not Berth's
  }
  return new BerthError({
    code: byStatus[status] ?? "UPSTREAM_ERROR",
    message: `the server's answer is not Berth's: ${status}`,
    suggestion: "Check the server's URL, and what stands between here and the server.",
    requestId: headers.get("x-request-id") ?? "",
    retryAfterMs: wait,
    status,
  });
}
