// All flows of the official Node.js client: node5.cjs MODULES ENDPOINTS COUNT. The topics NormalT, FifoT, DelayT, TranT and
// PriorityT are there, and the group node_fifo consumes in order. Last line: JSON with "ok".
// Messages of other clients are passed over. A producer of several topics would wait for ever: 1.0.8 begins to wait for
// its settings after they have come.
const [modules, endpoints, countText] = process.argv.slice(2);
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult } = require(require.resolve('rocketmq-client-nodejs', { paths: [modules] }));
const count = Number(countText);
const quiet = { debug() {}, info() {}, warn() {}, error(...a) { console.error(...a); } };
const common = { endpoints, namespace: '', logger: quiet, requestTimeout: 10000 };
const sleep = ms => new Promise(r => setTimeout(r, ms));

async function pushed(topic, group, wanted, seconds) {
  const seen = [];
  const consumer = new PushConsumer({ ...common, consumerGroup: group, subscriptions: new Map([[topic, '*']]),
    messageListener: { async consume(m) { if (m.body.toString().startsWith('node ')) seen.push(m.body.toString()); return ConsumeResult.SUCCESS; } } });
  await consumer.startup();
  for (let i = 0; i < seconds * 10 && seen.length < wanted; i++) await sleep(100);
  await sleep(500);
  return seen;
}

async function main() {
  const told = {};
  let ok = true;
  const check = (name, found, good) => { told[name] = found; ok = ok && good; };
  const producers = {};
  for (const topic of ['NormalT', 'FifoT', 'DelayT', 'TranT', 'PriorityT']) {
    producers[topic] = new Producer({ ...common, topic, maxAttempts: 3, checker: { async check() { return 1; } } });
    await producers[topic].startup();
  }
  const send = (message, transaction) => producers[message.topic].send(message, transaction);
  const names = prefix => Array.from({ length: count }, (_, i) => `node ${prefix}${i}`);
  for (const name of names('n')) await send({ topic: 'NormalT', tag: 'a', keys: ['k-' + name], properties: new Map([['p', 'v']]), body: Buffer.from(name) });
  for (const name of names('f')) await send({ topic: 'FifoT', messageGroup: 'one', body: Buffer.from(name) });
  const simple = new SimpleConsumer({ ...common, consumerGroup: 'node_simple', subscriptions: new Map([['NormalT', 'a']]), awaitDuration: 5000 });
  await simple.startup();
  const got = new Set();
  for (let i = 0; i < 20 && got.size < count; i++) {
    for (const m of await simple.receive(16, 30000)) { if (m.body.toString().startsWith('node ')) got.add(m.body.toString()); await simple.ack(m); }
  }
  check('simple', [...got].sort(), JSON.stringify([...got].sort()) === JSON.stringify(names('n').sort()));
  const fifo = await pushed('FifoT', 'node_fifo', count, 60);
  check('fifo', fifo, JSON.stringify(fifo) === JSON.stringify(names('f')));
  const due = Date.now() + 3000;
  await send({ topic: 'DelayT', deliveryTimestamp: new Date(due), body: Buffer.from('node late') });
  const late = await pushed('DelayT', 'node_delay', 1, 60);
  check('delay', late, late.join() === 'node late' && Date.now() >= due);
  await send({ topic: 'PriorityT', priority: 1, body: Buffer.from('node first') });
  const first = await pushed('PriorityT', 'node_priority', 1, 60);
  check('priority', first, first.join() === 'node first');
  for (const end of ['commit', 'rollback']) {
    const transaction = producers.TranT.beginTransaction();
    await send({ topic: 'TranT', body: Buffer.from(`node ${end}`) }, transaction);
    await transaction[end]();
  }
  const open = producers.TranT.beginTransaction();
  await send({ topic: 'TranT', body: Buffer.from('node open') }, open);
  const tran = (await pushed('TranT', 'node_tran', 2, 60)).sort();
  check('tran', tran, tran.join() === 'node commit,node open');
  console.log(JSON.stringify({ ok, ...told }));
  process.exit(ok ? 0 : 1);
}
main().catch(error => { console.error(error); console.log(JSON.stringify({ ok: false, error: String(error) })); process.exit(1); });
