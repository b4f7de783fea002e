import { BerthError } from "./errors.js";

/** A route, and what its calls may do when their answer is lost. */
export interface Route {
  method: string;
  path: string;
  write: boolean;
  /** Its input has a retry key. */
  keyed: boolean;
}

/** One call, ready to be sent any number of times. */
export interface Prepared {
  method: string;
  url: string;
  json?: string | undefined;
  /** Sent again it has no second effect. */
  repeatable: boolean;
}

const retryKey = "idempotencyKey";

/** Divides an input between path, query and body, and puts a retry key into a write that has none. */
export function prepare(base: string, route: Route, input: object): Prepared {
  const members: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(input)) {
    if (value !== undefined) members[name] = value;
  }
  if (route.keyed && (members[retryKey] === undefined || members[retryKey] === "")) {
    members[retryKey] = globalThis.crypto.randomUUID();
  }
  const url = base + fillPath(route.path, members);
  const repeatable = !route.write || route.keyed;
  if (route.method !== "GET" && route.method !== "DELETE") {
    return { method: route.method, url, json: JSON.stringify(members), repeatable };
  }
  return { method: route.method, url: url + query(members), repeatable };
}

/** Puts members into the braces of a path and takes them out of the input. An empty one, or a dot segment, would be another path. */
export function fillPath(path: string, members: Record<string, unknown>): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = members[name];
    delete members[name];
    if (typeof value !== "string" || value === "" || value === "." || value === "..") {
      throw new BerthError({ code: "INVALID_INPUT", message: `${name} is missing or is no name`, suggestion: "Correct the argument and call again.", details: { path: name } });
    }
    return encodeURIComponent(value);
  });
}

/** Writes members as the API reads them: arrays by repetition, members of objects as name.key. */
export function query(members: Record<string, unknown>): string {
  const params = new URLSearchParams();
  const add = (name: string, value: unknown): void => {
    if (value === undefined) return;
    if (Array.isArray(value)) {
      for (const item of value) add(name, item);
    } else if (typeof value === "object" && value !== null) {
      for (const [key, inner] of Object.entries(value)) add(`${name}.${key}`, inner);
    } else {
      params.append(name, String(value));
    }
  };
  for (const [name, value] of Object.entries(members)) add(name, value);
  const text = params.toString();
  return text === "" ? "" : `?${text}`;
}
