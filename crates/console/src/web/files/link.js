// The connection with the server, which is made again when it has ended.

// The token is kept for this tab, and only for this port of this host: a cookie would go to all ports.
const KEY = "ring3-token";
const AGAIN = 500;

// Returns whether there was one.
export function takeTokenFromAddress() {
  const found = /^#token=([0-9a-fA-F]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(KEY, found[1]);
    history.replaceState(null, "", location.pathname);
  }
  return found !== null;
}

export function setToken(token) {
  sessionStorage.setItem(KEY, token.trim().replace(/^.*#token=/, ""));
}

export class Link {
  // `on` has: opened(), heard(message), bytes(view), lost(), refused().
  constructor(on) {
    this.on = on;
    this.socket = null;
    this.timer = null;
  }

  async open() {
    clearTimeout(this.timer);
    const token = sessionStorage.getItem(KEY);
    if (!token) {
      return this.on.refused();
    }
    let answer;
    try {
      answer = await fetch("/check", { headers: { Authorization: `Bearer ${token}` } });
    } catch {
      return this.again();
    }
    if (answer.status === 401) {
      sessionStorage.removeItem(KEY);
      return this.on.refused();
    }
    const socket = new WebSocket(`ws://${location.host}/socket`, ["ring3", `token.${token}`]);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.socket = socket;
      this.on.opened();
    };
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") {
        this.on.heard(JSON.parse(data));
      } else {
        this.on.bytes(new DataView(data));
      }
    };
    socket.onclose = () => {
      this.socket = null;
      this.again();
    };
  }

  again() {
    this.on.lost();
    this.timer = setTimeout(() => this.open(), AGAIN);
  }

  say(message) {
    if (this.socket && this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify(message));
    }
  }
}

// Draws the parts of a picture that are in `bytes` from `at` on.
export function drawParts(canvas, bytes, at) {
  const number = () => bytes.getUint16((at += 2) - 2);
  const [width, height, count] = [number(), number(), number()];
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  for (let part = 0; part < count; part++) {
    const [x, y, columns, rows] = [number(), number(), number(), number()];
    const length = columns * rows * 4;
    if (length > 0) {
      const pixels = new Uint8ClampedArray(bytes.buffer, bytes.byteOffset + at, length);
      context.putImageData(new ImageData(pixels, columns, rows), x, y);
    }
    at += length;
  }
}
