'use strict';

// A customer at the checkout, in a real browser: impatient, reloading, offline, and unlucky.
// Afterwards there is one charge, and the page shows the one receipt.
//
// usage: drive.js SCREENSHOTS, with PORT, PROVIDER and what the server needs in the environment

const { spawn } = require('node:child_process');
const { mkdirSync } = require('node:fs');
const http = require('node:http');
const { chromium } = require('playwright-core');

const { PORT, PROVIDER, PYTHON, CHROMIUM } = process.env;
const SHOP = `http://127.0.0.1:${PORT}/`;
const SCREENSHOTS = process.argv[2];
const PATIENCE = 120_000; // ms, for what usually comes at once

const SETTINGS = { LEASE: '120', PROVIDER_TIMEOUT: '100' }; // a busy machine is no reason

let wrong = 0;
function check(what, got, expected) {
  const ok = String(got) === String(expected);
  wrong += !ok;
  console.log(`   ${what.padEnd(52)}${String(expected).padEnd(28)}${String(got).padEnd(28)} ${ok ? 'ok' : 'WRONG'}`);
}

// -- The server, and the provider's reply -----------------------------------------

let server;
async function startServer(settings) {
  server = spawn(PYTHON, [`${__dirname}/server.py`], { env: { ...process.env, ...settings }, stdio: ['ignore', 'ignore', 'inherit'] });
  for (;;) {
    if (await fetch(SHOP).catch(() => null)) return;
    await new Promise((resolve) => { setTimeout(resolve, 100); });
  }
}

function killServer() {
  return new Promise((resolve) => {
    server.on('exit', resolve);
    server.kill('SIGKILL');
  });
}

// The next charge is made, and the provider's reply kept back until release().
function hold() {
  return new Promise((resolve) => {
    const request = http.get(`${PROVIDER}/hold`, (reply) => {
      let said = '';
      let reached;
      const waiting = new Promise((done) => { reached = done; });
      reply.on('error', () => {});
      reply.on('data', (chunk) => {
        said += chunk;
        if (said.startsWith('held\n')) resolve({ reached: waiting, release: () => request.destroy() });
        if (said.includes('reached\n')) reached();
      });
    });
    request.on('error', () => {});
  });
}

// -- The customer ------------------------------------------------------------------

async function open(context) {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  await page.goto(SHOP);
  await page.waitForFunction(() => document.getElementById('key').textContent);
  return page;
}

const receipt = async (page) => {
  await page.locator('#receipt').waitFor();
  return page.locator('#receipt').textContent();
};
const intent = (page) => page.evaluate(() => JSON.parse(localStorage.getItem('intent')));
const screenshot = (page, name) => page.screenshot({ path: `${SCREENSHOTS}/${name}.png` });

async function charges(page) {
  const { reference } = await intent(page);
  return (await (await fetch(`${PROVIDER}/charges?reference=${reference}`)).json()).charges;
}

const requests = async (page) => (await page.locator('#requests li').allTextContents()).map((line) => line.replace(/^.*→ /, ''));

const stories = {
  async 'impatient: five clicks'(page) {
    const held = await hold();
    for (let i = 0; i < 5; i++) await page.locator('#pay').click();
    await held.reached;
    await page.getByText('409, Retry-After').first().waitFor();
    await page.locator('#state.in_progress').waitFor();
    await screenshot(page, 'in-progress');
    held.release();
    await receipt(page);
    const sent = await requests(page);
    check('    first answers, and others', `${sent.filter((line) => line === '201').length}, ${sent.length > 4}`, '1, true');
  },

  async 'reloads in the middle'(page) {
    const held = await hold();
    await page.locator('#pay').click();
    await held.reached;
    const before = await intent(page);
    await page.reload();
    await page.getByText('409').first().waitFor(); // went on by itself
    check('    the key after the reload', (await intent(page)).key === before.key ? 'the same' : 'another', 'the same');
    held.release();
  },

  async 'opens a second tab, and pays in both'(page, context) {
    const held = await hold();
    await page.locator('#pay').click();
    await held.reached;
    const second = await open(context);
    await second.locator('#pay').click();
    await second.getByText('409').first().waitFor();
    held.release();
    check('    the receipt in both', await receipt(page) === await receipt(second) ? 'the same' : 'two', 'the same');
    await second.close();
  },

  async 'the answer is dropped on its way'(page) {
    let dropped = 0;
    await page.route('**/payments', async (route) => {
      if (dropped++) return route.continue();
      await route.fetch(); // the server has done it
      return route.abort();
    });
    await page.locator('#pay').click();
    await receipt(page);
    await page.unroute('**/payments');
    check('    what came back', (await requests(page)).join('; '), 'no answer; 201, replayed');
  },

  async 'offline, and back'(page, context) {
    await context.setOffline(true);
    await page.locator('#pay').click();
    await page.getByText('no answer').first().waitFor();
    check('    charges while offline', await charges(page), 0);
    await context.setOffline(false);
  },

  async 'the server is killed (-9) in the middle'(page) {
    await killServer();
    await startServer({ LEASE: '8' }); // so short only to see it end
    const held = await hold();
    await page.locator('#pay').click();
    await held.reached;
    await page.locator('#state.in_progress').waitFor();
    await killServer();
    held.release();
    await startServer(SETTINGS);
    await receipt(page);
    await page.getByText('completed, attempt 2').waitFor();
    await screenshot(page, 'taken-over');
  },
};

async function main() {
  mkdirSync(SCREENSHOTS, { recursive: true });
  await startServer(SETTINGS);
  const browser = await chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--force-color-profile=srgb'],
  });
  console.log(`\nA customer pays for a lamp, in Chromium ${browser.version().split('.')[0]}\n`);
  for (const [story, tell] of Object.entries(stories)) {
    console.log(`   ${story}`);
    const context = await browser.newContext({ viewport: { width: 1000, height: 560 } });
    const page = await open(context);
    await tell(page, context);
    const text = await receipt(page);
    check('    charges, receipts', `${await charges(page)}, ${text.match(/Receipt no\. \d+/g).length}`, '1, 1');
    await page.reload();
    check('    the receipt after a reload', await receipt(page) === text ? 'the same' : 'another', 'the same');
    await context.close();
  }
  await browser.close();
  await killServer();
  console.log(wrong ? `\n${wrong} WRONG` : '\nAll as expected.');
  process.exitCode = wrong ? 1 : 0;
}

main().catch((error) => {
  console.error(error);
  server?.kill('SIGKILL');
  process.exit(1);
});
