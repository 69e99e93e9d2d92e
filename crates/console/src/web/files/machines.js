// The list of machines: small pictures, states, power, and graphs of what they use.

import { drawParts } from "./link.js";

// How long graphs go back, in milliseconds.
const PAST = 180_000;
// How long a button waits for the second press.
const SURE = 3000;

const GRAPHS = [
  ["processor", (machine) => machine.rates.processor === null ? null : machine.rates.processor / 1e7, 100, percent],
  ["memory", (machine) => machine.memory, 1 << 24, size],
  ["disk", (machine) => sum(machine.rates.read, machine.rates.written), 1 << 16, rate],
  ["network", (machine) => sum(machine.rates.received, machine.rates.sent), 1 << 14, rate],
];

function sum(one, other) {
  return one === null || other === null ? null : one + other;
}

function percent(value) {
  return `${value.toFixed(1)} %`;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1024;
    unit++;
  }
  return `${bytes.toFixed(unit && bytes < 10 ? 1 : 0)} ${units[unit]}`;
}

function rate(bytes) {
  return `${size(bytes)}/s`;
}

function make(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

// Calls `act` when a button is pressed: at the second press, if what it does is grave.
export function onPress(button, act) {
  let timer = null;
  const text = button.textContent;
  const calm = () => {
    clearTimeout(timer);
    timer = null;
    button.textContent = text;
    button.classList.remove("sure");
  };
  button.addEventListener("click", () => {
    if (button.classList.contains("grave") && timer === null) {
      button.textContent = `${text}: press again`;
      button.classList.add("sure");
      timer = setTimeout(calm, SURE);
      return;
    }
    calm();
    act();
  });
}

class Graphs {
  constructor() {
    this.element = make("div", { className: "graphs" });
    this.graphs = GRAPHS.map(([name]) => {
      const canvas = make("canvas", { width: 160, height: 34 });
      canvas.setAttribute("aria-hidden", "true");
      const caption = make("figcaption", { textContent: name });
      this.element.append(make("figure", {}, canvas, caption));
      return { canvas, caption };
    });
  }

  draw(past) {
    const now = Date.now();
    GRAPHS.forEach(([name, , least, show], index) => {
      const { canvas, caption } = this.graphs[index];
      const points = past.map((sample) => [sample.at, sample.values[index]]).filter(([, value]) => value !== null);
      const last = points.length && past[past.length - 1].values[index];
      caption.textContent = points.length && last !== null ? `${name} ${show(last)}` : `${name} -`;
      const context = canvas.getContext("2d");
      context.clearRect(0, 0, canvas.width, canvas.height);
      const most = Math.max(least, ...points.map(([, value]) => value));
      context.strokeStyle = "#6fd3e0";
      context.beginPath();
      points.forEach(([at, value], number) => {
        const x = canvas.width * (1 - (now - at) / PAST);
        const y = canvas.height - 1 - (canvas.height - 2) * value / most;
        if (number > 0) {
          context.lineTo(x, y);
        } else {
          context.moveTo(x, y);
        }
      });
      context.stroke();
    });
  }
}

export class Machines {
  // `open(name)` shows a machine, `order(order, name)` has something done to it.
  constructor(open, order) {
    this.open = open;
    this.order = order;
    this.known = new Map();
    this.list = document.getElementById("list");
    this.none = document.getElementById("none");
  }

  // Takes the list of machines, or null if the supervisor does not answer.
  take(machines) {
    this.none.hidden = machines !== null && machines.length > 0;
    this.none.textContent = machines === null ? "The supervisor does not answer." : "There are no machines.";
    if (machines === null) {
      return;
    }
    for (const [name, known] of this.known) {
      if (!machines.some((machine) => machine.name === name)) {
        known.item.remove();
        this.known.delete(name);
      }
    }
    for (const machine of machines) {
      const known = this.known.get(machine.name) ?? this.add(machine.name);
      known.machine = machine;
      known.open.classList.toggle("off", !["running", "paused"].includes(machine.state));
      const more = machine.restarts ? `, ${machine.restarts} restarts` : "";
      known.state.textContent = machine.state + more;
      known.ended.textContent = machine.ended ? `last end: ${machine.ended}` : "";
      const now = Date.now();
      known.past.push({ at: now, values: GRAPHS.map(([, value]) => value(machine)) });
      while (known.past[0].at < now - PAST) {
        known.past.shift();
      }
      known.graphs.draw(known.past);
    }
  }

  add(name) {
    const picture = make("canvas", { width: 192, height: 144 });
    picture.setAttribute("aria-hidden", "true");
    const state = make("span");
    const ended = make("small");
    const open = make("button", { className: "open" }, picture, make("span", {}, make("b", { textContent: name }), state, make("br"), ended));
    open.addEventListener("click", () => this.open(name));
    const power = make("div", { className: "power" });
    for (const [order, text, kind] of [["start", "Start", ""], ["pause", "Pause", ""], ["stop", "Shut down", "grave"], ["kill", "Kill", "grave"]]) {
      const button = make("button", { textContent: text, className: kind });
      button.setAttribute("aria-label", `${text} ${name}`);
      onPress(button, () => this.order(order, name));
      power.append(button);
    }
    const graphs = new Graphs();
    const item = make("li", {}, open, power, graphs.element);
    this.list.append(item);
    const known = { item, open, picture, state, ended, graphs, past: [], machine: null };
    this.known.set(name, known);
    return known;
  }

  // Draws a small picture.
  picture(bytes) {
    const length = bytes.getUint8(1);
    const name = new TextDecoder().decode(new Uint8Array(bytes.buffer, bytes.byteOffset + 2, length));
    const known = this.known.get(name);
    if (known) {
      drawParts(known.picture, bytes, 2 + length);
    }
  }

  machine(name) {
    return this.known.get(name)?.machine ?? null;
  }

  // Returns the graphs of a machine in an element of their own.
  graphsOf(name) {
    const graphs = new Graphs();
    return { element: graphs.element, draw: () => graphs.draw(this.known.get(name)?.past ?? []) };
  }
}
