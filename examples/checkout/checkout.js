'use strict';

// An intent to pay is what the customer means: this order, this amount, once. Its key is made
// when the intent is formed, not when the button is pressed, and is kept with it where every tab
// and the page after a reload find it. So whatever is sent for this intent has this key.

const $ = (id) => document.getElementById(id);
const show = (id, text) => { $(id).textContent = text; };

const load = () => JSON.parse(localStorage.getItem('intent'));
const save = (change) => localStorage.setItem('intent', JSON.stringify({ ...load(), ...change }));

function formIntent() {
  const number = crypto.randomUUID();
  localStorage.setItem('intent', JSON.stringify({ key: number, reference: `order-${number.slice(0, 8)}`, amount: 20 }));
}

// -- Paying --------------------------------------------------------------------

const pause = (seconds) => new Promise((resolve) => {
  setTimeout(resolve, seconds * 1000);
  addEventListener('online', resolve, { once: true });
});

let waiting = false;

// Sends the request until it has an answer. What the network does to a request or its answer,
// nobody can tell from here; with the key it does not matter. Every click sends it, one waits.
async function pay() {
  const intent = load();
  if (intent.receipt || intent.refusal) return;
  save({ paying: true });
  for (;;) {
    const answer = await send(intent);
    const other = load();
    if (other.key !== intent.key || other.receipt) break; // another tab has it already
    if (answer?.status === 201) {
      save({ receipt: await answer.json() });
      break;
    }
    if (answer && answer.status < 500 && answer.status !== 409) {
      save({ refusal: (await answer.json()).title });
      break;
    }
    show('status', answer ? 'Your payment is on its way …' : 'No answer. Trying again …');
    if (waiting) return;
    waiting = true;
    // Retry-After is when the lease would end; usually the answer is there long before, and
    // asking for it costs the server one read.
    await pause(Math.min(Number(answer?.headers.get('Retry-After')) || 1, 2));
    waiting = false;
  }
  render();
}

async function send({ key, reference, amount }) {
  const line = document.createElement('li');
  $('requests').append(line);
  line.textContent = `${$('requests').children.length}. sent`;
  try {
    const answer = await fetch('/payments', {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'Idempotency-Key': `"${key}"` },
      body: JSON.stringify({ reference, amount }),
    });
    const replayed = answer.headers.get('Idempotent-Replayed') ? ', replayed' : '';
    const later = answer.headers.get('Retry-After') ? `, Retry-After: ${answer.headers.get('Retry-After')}` : '';
    line.textContent += ` → ${answer.status}${replayed}${later}`;
    return answer;
  } catch {
    line.textContent += ' → no answer';
    return null;
  }
}

function render() {
  const intent = load();
  show('price', `20 €, ${intent.reference}`);
  show('key', intent.key);
  $('receipt').hidden = !intent.receipt;
  $('pay').hidden = $('another').hidden = Boolean(intent.receipt || intent.refusal);
  $('another').hidden = !$('pay').hidden;
  if (intent.receipt) {
    show('status', 'Thank you!');
    show('receipt', `Receipt no. ${intent.receipt.payment}: 20 € for ${intent.reference}, charge ${intent.receipt.charge}`);
  } else {
    show('status', intent.refusal ?? '');
  }
}

// -- The life of the key ---------------------------------------------------------

let life;

function follow() {
  life?.close();
  $('life').replaceChildren();
  $('requests').replaceChildren();
  life = new EventSource(`/life?key=${load().key}`);
  life.onmessage = ({ data }) => {
    const { state, attempt, lease, status } = JSON.parse(data);
    show('state', state.replace('_', ' '));
    $('state').className = `badge ${state}`;
    show('attempt', attempt ? `attempt ${attempt}` : '');
    show('lease', state === 'in_progress' ? `lease: ${Math.max(0, lease).toFixed(0)} s` : '');
    const text = `${state.replace('_', ' ')}${attempt ? `, attempt ${attempt}` : ''}${status ? `, answer ${status}` : ''}`;
    if ($('life').lastChild?.dataset.text !== text) {
      const line = document.createElement('li');
      line.dataset.text = text;
      line.textContent = `${new Date().toISOString().slice(11, 21)}  ${text}`;
      $('life').append(line);
    }
  };
}

// -- The page ----------------------------------------------------------------------

function begin() {
  render();
  follow();
  if (load().paying) pay(); // it was under way when the page was left
}

$('pay').onclick = pay; // as often as the customer likes
$('another').onclick = () => { formIntent(); begin(); };

// Another tab has changed it.
addEventListener('storage', ({ oldValue, newValue }) => {
  const changed = JSON.parse(newValue ?? 'null');
  if (changed && changed.key !== JSON.parse(oldValue ?? 'null')?.key) begin();
  else render();
});

// Two tabs that are opened at once form one intent.
navigator.locks.request('intent', async () => { if (!load()) formIntent(); }).then(begin);
