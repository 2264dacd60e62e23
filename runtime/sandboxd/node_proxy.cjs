// Preloaded into every Node of a sandbox that has a way out: `fetch`, `WebSocket` and `EventSource` use the proxy that HTTPS_PROXY
// and HTTP_PROXY name. Versions that do so by themselves (NODE_USE_ENV_PROXY) are left alone.
//
// Node's own agent for this cannot be had from outside. Its plain one can, in the moment when it is made, and takes a function that
// connects: here a tunnel through the proxy. Until then nothing is loaded: to look at the three would load them, some 25 ms.
'use strict';

const [major, minor] = process.versions.node.split('.').map(Number);
const proxy = (name) => process.env[name.toLowerCase()] || process.env[name];

if (major < 24 && !(major === 22 && minor >= 21) && (proxy('HTTPS_PROXY') || proxy('HTTP_PROXY'))) {
  const CONNECT_MS = 15_000;
  const DISPATCHER = Symbol.for('undici.globalDispatcher.1');
  const builtin = require;

  const isExcepted = (host) =>
    (proxy('NO_PROXY') || '').split(/[\s,]+/).some((entry) => {
      const name = entry.replace(/^\*?\./, '').replace(/^\[|\]$/g, '').toLowerCase();
      return entry === '*' || (name !== '' && (host === name || host.endsWith(`.${name}`)));
    });

  const secured = (socket, options, host) => {
    const tls = builtin('node:tls');
    const servername = options.servername || (builtin('node:net').isIP(host) ? '' : host);
    return tls.connect({ ...options, host, path: undefined, servername, socket, ALPNProtocols: ['http/1.1'] });
  };

  const tunnel = (options, host, port, through, done) => {
    const name = host.includes(':') ? `[${host}]` : host;
    const { hostname, port: at, username, password } = new URL(through);
    const credentials = Buffer.from(`${decodeURIComponent(username)}:${decodeURIComponent(password)}`).toString('base64');
    const request = builtin('node:http').request({
      host: hostname.replace(/^\[|\]$/g, ''),
      port: at || 80,
      method: 'CONNECT',
      path: `${name}:${port}`,
      agent: false,
      timeout: CONNECT_MS,
      headers: { host: `${name}:${port}`, ...(username && { 'proxy-authorization': `Basic ${credentials}` }) },
    });
    request.once('timeout', () => request.destroy(new Error(`the proxy did not connect to ${name}:${port} in time`)));
    request.once('error', done);
    request.once('connect', (response, socket, head) => {
      socket.setTimeout(0);
      if (response.statusCode === 200) {
        if (head.length > 0) socket.unshift(head);
        done(null, socket);
      } else {
        socket.destroy();
        done(new Error(`${response.statusCode} ${response.statusMessage}`));
      }
    });
    request.end();
  };

  const connect = (options, callback) => {
    const { protocol } = options;
    const host = options.hostname.replace(/^\[|\]$/g, '').toLowerCase();
    const port = Number(options.port || (protocol === 'https:' ? 443 : 80));
    let told = false;
    const tell = (error, socket) => {
      if (!told) {
        told = true;
        callback(error, error ? null : socket);
      }
    };
    const ready = (socket) => {
      socket.setNoDelay?.(true);
      if (protocol !== 'https:') return tell(null, socket);
      const safe = secured(socket, options, host);
      safe.once('secureConnect', () => tell(null, safe)).once('error', tell);
    };
    const through = protocol === 'https:' ? proxy('HTTPS_PROXY') : proxy('HTTP_PROXY');
    if (through && !isExcepted(host)) {
      tunnel(options, host, port, through, (error, socket) => (error ? tell(error) : ready(socket)));
    } else {
      const socket = builtin('node:net').connect({ host, port, timeout: CONNECT_MS });
      socket.once('timeout', () => socket.destroy(new Error(`no connection to ${host}:${port} in time`)));
      socket.once('error', tell).once('connect', () => ready(socket.setTimeout(0)));
    }
  };

  // Asked for where there is none yet, it is about to be put there: in its place comes one of the same kind that connects as above.
  Object.defineProperty(globalThis, DISPATCHER, {
    configurable: true,
    get() {
      const define = Object.defineProperty;
      const restore = () => {
        Object.defineProperty = define;
      };
      Object.defineProperty = (object, key, description) => {
        if (object !== globalThis || key !== DISPATCHER) return define(object, key, description);
        restore();
        return define(object, key, { ...description, value: new description.value.constructor({ connect }) });
      };
      queueMicrotask(restore);
      return undefined;
    },
  });
}

delete require.cache[__filename];
