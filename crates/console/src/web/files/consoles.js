// The console of a machine: its screen with keyboard and mouse, or a terminal.

import { drawParts } from "./link.js";

const ROW = 18;
const EDGE = 32767;
const BUTTONS = ["left", "middle", "right"];
const BOLD = 1, DIM = 2, ITALIC = 4, UNDERLINED = 8, REVERSED = 16;
const FRONT = 0xdddddd, BACK = 0x000000;

function colour(number) {
  return `#${number.toString(16).padStart(6, "0")}`;
}

// What leaves the guest, and what types the clipboard: the only keys that the guest does not get.
function isLeave(event) {
  return event.ctrlKey && event.altKey && event.code === "KeyG";
}

function isPaste(event) {
  return event.ctrlKey && event.shiftKey && event.code === "KeyV";
}

export class Screen {
  // `say(message)` tells the server, `leave()` and `paste()` do what those keys mean.
  constructor(say, leave, paste) {
    this.say = say;
    this.canvas = document.getElementById("screen");
    this.held = new Set();
    this.moves = [];
    const on = (name, act) => this.canvas.addEventListener(name, act);
    on("keydown", (event) => {
      event.preventDefault();
      if (isLeave(event)) {
        this.release();
        leave();
      } else if (isPaste(event)) {
        this.release();
        paste();
      } else {
        this.held.add(event.code);
        say({ do: "key", place: event.code, down: true });
      }
    });
    on("keyup", (event) => {
      event.preventDefault();
      if (this.held.delete(event.code)) {
        say({ do: "key", place: event.code, down: false });
      }
    });
    on("blur", () => this.release());
    on("contextmenu", (event) => event.preventDefault());
    on("pointermove", (event) => this.move(event));
    on("pointerdown", (event) => this.button(event, true));
    on("pointerup", (event) => this.button(event, false));
    on("wheel", (event) => {
      event.preventDefault();
      const button = event.deltaY < 0 ? "wheel-up" : "wheel-down";
      this.change({ button: [button, true] }, { button: [button, false] });
    });
  }

  press(codes) {
    codes.forEach((place) => this.say({ do: "key", place, down: true }));
    codes.reverse().forEach((place) => this.say({ do: "key", place, down: false }));
  }

  // Releases all keys: the guest must not believe that they are held while they are typed elsewhere.
  release() {
    this.held.forEach((place) => this.say({ do: "key", place, down: false }));
    this.held.clear();
  }

  move(event) {
    if (document.pointerLockElement === this.canvas) {
      if (event.movementX || event.movementY) {
        this.change({ by: [Math.round(event.movementX), Math.round(event.movementY)] });
      }
      return;
    }
    const area = this.canvas.getBoundingClientRect();
    const place = (at, from, length) => Math.max(0, Math.min(EDGE, Math.round((at - from) / length * EDGE)));
    this.change({ to: [place(event.clientX, area.left, area.width), place(event.clientY, area.top, area.height)] });
  }

  button(event, isDown) {
    event.preventDefault();
    this.canvas.focus();
    const button = BUTTONS[event.button];
    if (button) {
      if (isDown) {
        this.canvas.setPointerCapture(event.pointerId);
      }
      this.move(event);
      this.change({ button: [button, isDown] });
    }
  }

  // Changes that come together are sent together.
  change(...changes) {
    if (this.moves.length === 0) {
      requestAnimationFrame(() => {
        this.say({ do: "pointer", changes: this.moves });
        this.moves = [];
      });
    }
    const last = this.moves[this.moves.length - 1];
    if (last?.to && changes[0].to) {
      last.to = changes[0].to;
    } else {
      this.moves.push(...changes);
    }
  }

  draw(bytes) {
    drawParts(this.canvas, bytes, 1);
    requestAnimationFrame(() => this.say({ do: "drawn" }));
  }

  clear() {
    this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
  }
}

export class Terminal {
  constructor(say, leave, paste) {
    this.say = say;
    this.element = document.getElementById("terminal");
    this.rows = document.getElementById("rows");
    this.cursor = document.getElementById("cursor");
    const on = (name, act) => this.element.addEventListener(name, act);
    on("keydown", (event) => {
      event.preventDefault();
      if (isLeave(event)) {
        leave();
      } else if (isPaste(event)) {
        paste();
      } else if (event.shiftKey && (event.code === "PageUp" || event.code === "PageDown")) {
        this.scroll((event.code === "PageUp" ? 1 : -1) * Math.floor(this.room().rows / 2));
      } else {
        const isGraph = event.getModifierState("AltGraph");
        const control = event.ctrlKey && !isGraph;
        say({ do: "type", key: event.key, control, alt: event.altKey && !isGraph, shift: event.shiftKey });
      }
    });
    on("wheel", (event) => {
      event.preventDefault();
      this.scroll(event.deltaY < 0 ? 3 : -3);
    });
    new ResizeObserver(() => {
      const room = this.room();
      if (room && (room.columns !== this.told?.columns || room.rows !== this.told?.rows)) {
        this.told = room;
        say({ do: "size", ...room });
      }
    }).observe(this.element);
  }

  scroll(lines) {
    this.say({ do: "scroll", lines });
  }

  // Returns how many columns and rows there is room for.
  room() {
    const { clientWidth, clientHeight } = this.element;
    const probe = document.createElement("span");
    probe.textContent = "0".repeat(100);
    this.element.append(probe);
    const column = probe.getBoundingClientRect().width / 100;
    probe.remove();
    if (!clientWidth || !column) {
      return { columns: 80, rows: 25 };
    }
    return { columns: Math.floor((clientWidth - 6) / column), rows: Math.floor((clientHeight - 6) / ROW) };
  }

  draw({ count, rows, cursor }) {
    while (this.rows.children.length > count) {
      this.rows.lastChild.remove();
    }
    while (this.rows.children.length < count) {
      this.rows.append(document.createElement("div"));
    }
    for (const [number, runs] of rows) {
      this.rows.children[number].replaceChildren(...runs.map(span));
    }
    this.cursor.hidden = cursor === null;
    if (cursor) {
      this.cursor.style.left = `calc(3px + ${cursor[0]}ch)`;
      this.cursor.style.top = `${3 + cursor[1] * ROW}px`;
    }
    requestAnimationFrame(() => this.say({ do: "drawn" }));
  }

  text() {
    return [...this.rows.children].map((row) => row.textContent.trimEnd()).join("\n").trimEnd();
  }

  clear() {
    this.rows.replaceChildren();
    this.cursor.hidden = true;
  }
}

// What the guest has written is text here, and never markup.
function span([text, front, back, ways]) {
  const made = document.createElement("span");
  made.textContent = text;
  if (ways & REVERSED) {
    [front, back] = [back < 0 ? BACK : back, front < 0 ? FRONT : front];
  }
  if (front >= 0) {
    made.style.color = colour(front);
  }
  if (back >= 0) {
    made.style.backgroundColor = colour(back);
  }
  for (const [bit, name] of [[BOLD, "b"], [DIM, "d"], [ITALIC, "i"], [UNDERLINED, "u"]]) {
    made.classList.toggle(name, (ways & bit) !== 0);
  }
  return made;
}
