// Browsers that shop, for k6. Every interaction that they had goes to the console as a line of its own:
//
//   interaction intended-ms lag-ms page-ms response-ms bytes pictures turn request-id fault
//
// `intended` is when it was to begin, in milliseconds since 1970; the response is counted from there until the page and
// its pictures are here. `lag` is how late it began. `fault` is "-", or what was wrong.
//
// open: sessions arrive at a set rate. Within a session, each interaction is due a while after the one before was *due*,
// whatever the answers take: who waits for a slow answer begins the next one late, and that counts.
// closed: so many browsers, each of which thinks after each answer.
import http from 'k6/http';
import { sleep } from 'k6';
import exec from 'k6/execution';

const shop = __ENV.SHOP;
const asked = {
  load: __ENV.LOAD, mix: __ENV.MIX, rate: Number(__ENV.RATE), browsers: Number(__ENV.BROWSERS), think: Number(__ENV.THINK),
  length: Number(__ENV.SESSION), seconds: Number(__ENV.SECONDS), pictures: __ENV.PICTURES === '1',
  items: Number(__ENV.ITEMS), customers: Number(__ENV.CUSTOMERS), patience: Number(__ENV.PATIENCE), atOnce: Number(__ENV.AT_ONCE),
};

// How often each interaction comes, in hundredths of a per cent; TPC-W, clause 5.3.
const MIXES = {
  //         home  new  best  book  search results cart register buy confirm orders last admin changed
  browsing: [2900, 1100, 1100, 2100, 1200, 1100, 200, 82, 75, 69, 30, 25, 10, 9],
  shopping: [1600, 500, 500, 1700, 2000, 1700, 1160, 300, 260, 120, 75, 66, 10, 9],
  ordering: [912, 46, 46, 1235, 1453, 1308, 1353, 1286, 1273, 1018, 25, 22, 12, 11],
};
const NAMES = ['home', 'new', 'best', 'book', 'search', 'results', 'cart', 'register', 'buy', 'confirm', 'orders', 'last', 'admin', 'changed'];
const SUBJECTS = ['Arts', 'Biographies', 'Business', 'Children', 'Computers', 'Cooking', 'Health', 'History', 'Home', 'Humor', 'Literature',
  'Mystery', 'Non-Fiction', 'Parenting', 'Politics', 'Reference', 'Religion', 'Romance', 'Self-Help', 'Science-Nature', 'Science-Fiction',
  'Sports', 'Youth', 'Travel'];
const WORDS = ['amber', 'birch', 'clover', 'drift', 'ember', 'falcon', 'garden', 'harbour', 'island', 'lantern', 'meadow', 'north', 'orchard',
  'pepper', 'river', 'silver', 'thistle', 'violet', 'willow', 'yarrow'];
const SHORTEST = 700; // bytes that a page has at least

const sessions = Math.max(1, Math.round((asked.rate / asked.length) * 100)) / 100; // a second, as exactly as k6 takes it
const scenarios = {
  open: {
    executor: 'constant-arrival-rate', duration: `${asked.seconds}s`, gracefulStop: `${asked.patience + asked.length * asked.think * 4}s`,
    rate: Math.round(sessions * 100), timeUnit: '100s',
    preAllocatedVUs: Math.min(asked.atOnce, Math.ceil(sessions * (asked.length * asked.think + asked.patience)) + 10),
  },
  closed: { executor: 'constant-vus', duration: `${asked.seconds}s`, vus: asked.browsers, gracefulStop: `${asked.patience}s` },
};
export const options = {
  scenarios: { shop: scenarios[asked.load] },
  noCookiesReset: true, // a session's cookies are its own: `arrive` begins with none
  noVUConnectionReuse: asked.load === 'open', // a new session is a new browser
  discardResponseBodies: false, systemTags: ['status'], throw: false, userAgent: 'memlane-lab browser',
};

const total = MIXES[asked.mix].reduce((sum, weight) => sum + weight, 0);
const below = (limit) => Math.floor(Math.random() * limit);
const one = (list) => list[below(list.length)];
let counted = 0;
let session = null;

function arrive() {
  http.cookieJar().clear(shop);
  session = { customer: 1 + below(asked.customers), seen: {}, turn: 0 };
  http.cookieJar().set(shop, 'customer', String(session.customer));
}

function choose() {
  let left = below(total);
  return NAMES[MIXES[asked.mix].findIndex((weight) => (left -= weight) < 0)];
}

// TPC-W: exponential, cut off at ten times its mean.
const thought = () => Math.min(-Math.log(1 - Math.random()), 10) * asked.think;

function ask(name, id) {
  const get = (path) => http.get(`${shop}${path}`, request(id, name));
  const post = (path, form) => http.post(`${shop}${path}`, form, request(id, name));
  const item = 1 + below(asked.items);
  switch (name) {
    case 'home': return get('/');
    case 'new': return get(`/new?subject=${one(SUBJECTS)}`);
    case 'best': return get(`/best?subject=${one(SUBJECTS)}`);
    case 'book': return get(`/book/${item}`);
    case 'search': return get('/search');
    case 'results': return get(one([`/results?by=author&for=${one(WORDS).slice(0, 3)}`, `/results?by=title&for=${one(WORDS)}`,
      `/results?by=subject&for=${one(SUBJECTS)}`]));
    case 'cart': return post('/cart', { item });
    case 'register': return get('/register');
    case 'buy': return post('/buy', customer(id));
    case 'confirm': return post('/confirm', { kind: 'visa', digits: '1234', shipping: 'air' });
    case 'orders': return get('/orders');
    case 'last': return post('/orders/last', { login: `reader${session.customer}`, password: `secret${session.customer}` });
    case 'admin': return get(`/admin/${item}`);
    default: return post(`/admin/${item}/confirm`, { price: String(1 + below(9900) / 100), picture: String(below(100)) });
  }
}

// Four of five are known.
function customer(id) {
  if (Math.random() < 0.8) return { login: `reader${session.customer}`, password: `secret${session.customer}` };
  return { login: `new-${Date.now()}-${id}`, password: 'secret', first_name: 'Nora', last_name: 'Newman', street: '1 New Street', city: 'Newton' };
}

const request = (id, name) => ({ headers: { 'X-Request-Id': id }, timeout: `${asked.patience}s`, tags: { name } });

function fault(name, response) {
  if (response.status && response.status !== 200) return `status-${response.status}`;
  if (response.error_code) return `error-${response.error_code}`;
  if (response.body.length < SHORTEST) return 'too-short';
  if (!response.body.endsWith('</html>')) return 'cut-off';
  return response.body.includes(`data-page="${name}"`) ? null : 'other-page';
}

// What the page shows and this browser has not seen before.
function wanted(body) {
  const found = [];
  for (const match of body.matchAll(/(?:src|href)="(\/static\/[^"]+)"/g)) {
    if (!session.seen[match[1]]) {
      session.seen[match[1]] = true;
      found.push(match[1]);
    }
  }
  return found;
}

function fetchAll(paths, id) {
  const parameters = { responseType: 'binary', timeout: `${asked.patience}s`, headers: { 'X-Request-Id': id }, tags: { name: 'picture' } };
  const answers = http.batch(paths.map((path) => ['GET', `${shop}${path}`, null, parameters]));
  for (const answer of answers) {
    if (answer.status && answer.status !== 200) return { fault: `picture-status-${answer.status}`, bytes: 0 };
    if (answer.error_code) return { fault: `picture-error-${answer.error_code}`, bytes: 0 };
    if (answer.body.byteLength !== Number(answer.headers['Content-Length'])) return { fault: 'picture-cut-off', bytes: 0 };
  }
  return { fault: null, bytes: answers.reduce((sum, answer) => sum + answer.body.byteLength, 0) };
}

// The clock tells whole milliseconds, cut off: half of one is added, so that sums are right in the mean.
const since = (moment) => Math.max(0, Date.now() + 0.5 - moment);

function interact(intended, turn) {
  const name = choose();
  const id = `${exec.vu.idInTest}-${++counted}`;
  const lag = since(intended);
  const response = ask(name, id);
  const page = response.timings.blocked + response.timings.connecting + response.timings.duration;
  let wrong = fault(name, response);
  let bytes = response.body ? response.body.length : 0;
  let took = lag + page;
  let pictures = [];
  if (!wrong && asked.pictures && (pictures = wanted(response.body)).length) {
    const began = Date.now();
    const got = fetchAll(pictures, id);
    took += Date.now() - began;
    wrong = got.fault;
    bytes += got.bytes;
  }
  console.log(`${name} ${intended.toFixed(1)} ${lag.toFixed(1)} ${page.toFixed(3)} ${took.toFixed(3)} ${bytes} ${pictures.length} ${turn} ${id} ${wrong || '-'}`);
}

function waitUntil(moment) {
  const left = moment - Date.now();
  if (left > 0) sleep(left / 1000);
}

export default function () {
  if (asked.load === 'open') {
    arrive();
    let due = exec.scenario.startTime + (exec.scenario.iterationInTest * 1000) / sessions;
    for (let index = 0; index < asked.length; index++) {
      waitUntil(due);
      interact(due, index);
      due += thought() * 1000;
    }
    return;
  }
  if (!session) {
    sleep(Math.random() * Math.min(asked.think, 1)); // browsers do not begin all at once
    arrive();
  } else if (below(asked.length) === 0) {
    arrive();
  }
  interact(Date.now(), session.turn++);
  if (asked.think) sleep(thought());
}

export function handleSummary(data) {
  const count = (name) => (data.metrics[name] ? data.metrics[name].values.count : 0);
  return { stdout: JSON.stringify({ sessions: count('iterations'), dropped: count('dropped_iterations') }) + '\n' };
}
