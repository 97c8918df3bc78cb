// Requests to the switch that has sent this page.

const TOKEN = "memlane-token";

export class NeedsToken extends Error {}

export function remember(token) {
  sessionStorage.setItem(TOKEN, token);
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

function headers(more) {
  const token = sessionStorage.getItem(TOKEN);
  return token === null ? more : { ...more, authorization: `Bearer ${token}` };
}

export async function request(path, { method = "GET", body, accept = "application/json", signal } = {}) {
  const more = body === undefined ? { accept } : { accept, "content-type": "application/json" };
  const response = await fetch(path, { method, headers: headers(more), body: body && JSON.stringify(body), signal });
  if (response.status === 401) throw new NeedsToken("The network needs a token.");
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new Error(problem.error ?? `The network answers ${response.status}.`);
  }
  return response;
}

export const get = async (path) => (await request(path, { signal: AbortSignal.timeout(10_000) })).json();

export const portPath = (name) => `v1/ports/${encodeURIComponent(name)}`;

// Calls `take` with each event, and with `{missed}`, until the network ends the stream.
export async function events(from, take) {
  const query = from === null ? "" : `?from=${from}`;
  const response = await request(`v1/events${query}`, { accept: "application/jsonl" });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line !== "") take(JSON.parse(line));
  }
}

// Captures frames of a port until `signal` or a limit ends it; `progress` is called with the bytes so far. Returns the file.
export async function capture(name, { seconds, bytes, drops }, signal, progress) {
  const parts = [];
  let size = 0;
  const ends = AbortSignal.any([signal, AbortSignal.timeout(seconds * 1000)]);
  const response = await request("v1/capture", { method: "POST", body: { ports: [name], drops }, accept: "application/x-pcapng", signal: ends });
  const reader = response.body.getReader();
  try {
    while (size < bytes) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      size += value.length;
      progress(size);
    }
    await reader.cancel();
  } catch (error) {
    if (!ends.aborted) throw error;
  }
  return new Blob(parts, { type: "application/x-pcapng" });
}
