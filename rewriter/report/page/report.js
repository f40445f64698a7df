"use strict";
// The graphs of a report: groups that open and close, changes in pairs, and a way to everything by keyboard.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const details = document.getElementById("details"), where = document.getElementById("which");
  const HUES = [210, 30, 130, 280, 0, 180, 330, 55, 250, 100];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (region) => `hsl(${HUES[region % HUES.length]}, ${dark.matches ? "45%, 32%" : "70%, 82%"})`;

  class Pane {
    constructor(side, graph) {
      Object.assign(this, { side, nodes: graph.nodes, groups: graph.groups, open: new Set([0]), selected: null });
      this.children = this.groups.map(() => []);
      this.groups.forEach((group, number) => { if (group.parent >= 0) this.children[group.parent].push("g" + number); });
      this.nodes.forEach((node, number) => this.children[node.group].push("n" + number));
      this.users = this.nodes.map(() => []);
      this.nodes.forEach((node, number) => node.in.forEach((maker) => this.users[maker].push(number)));
      this.count = this.groups.map(() => 0);
      this.changed = this.groups.map(() => new Set());
      this.nodes.forEach((node) => {
        for (let group = node.group; group >= 0; group = this.groups[group].parent) {
          this.count[group] += 1;
          if (node.region >= 0) this.changed[group].add(node.region);
        }
      });
      this.element = document.getElementById(side);
      this.cy = cytoscape({ container: this.element, elements: [], style: this.style(), minZoom: 0.02, maxZoom: 3, boxSelectionEnabled: false });
      this.cy.on("tap", "node", (event) => this.act(event.target.id()));
      this.element.addEventListener("keydown", (event) => this.key(event));
      dark.addEventListener("change", () => { this.draw(); });
      this.draw();
      this.whole();
    }

    whole() {
      this.cy.fit(undefined, 20);
      if (this.cy.zoom() > 1.1) { this.cy.zoom(1.1); this.cy.center(); }
    }

    style() {
      const text = variable("--text"), edge = variable("--edge"), link = variable("--link");
      return [
        { selector: "node", style: { label: "data(label)", shape: "round-rectangle", width: "data(width)", height: "data(height)", "text-valign": "center",
          "text-wrap": "wrap", "font-size": 12, color: text, "background-color": "data(colour)", "border-width": 1, "border-color": edge } },
        { selector: "node[?folded]", style: { "border-style": "double", "border-width": 4 } },
        { selector: "$node > node", style: { "text-valign": "top", "background-opacity": 0.25, "border-style": "dashed", padding: 12 } },
        { selector: "edge", style: { width: 1.2, "line-color": edge, "target-arrow-color": edge, "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": "bezier" } },
        { selector: ".paired", style: { "border-width": 4, "border-color": text } },
        { selector: ".chosen", style: { "border-width": 5, "border-color": link, "border-style": "solid" } },
      ];
    }

    // The item that stands for a node: itself, or the outermost group around it that is closed.
    shown(number) {
      let item = "n" + number;
      for (let group = this.nodes[number].group; group >= 0; group = this.groups[group].parent) if (!this.open.has(group)) item = "g" + group;
      return item;
    }

    draw() {
      const layout = new dagre.graphlib.Graph({ compound: true });
      layout.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 34, ranker: "longest-path" });
      layout.setDefaultEdgeLabel(() => ({}));
      const items = [], edges = new Map();
      const visit = (group, parent) => {
        for (const child of this.children[group]) {
          const number = Number(child.slice(1)), isGroup = child[0] === "g", opened = isGroup && this.open.has(number);
          const lines = isGroup ? [this.groups[number].name, `${this.count[number]} nodes` + (this.changed[number].size ? `, ${this.changed[number].size} changed` : "")]
            : [this.nodes[number].op];
          const short = lines.map((line) => (line.length > 40 ? line.slice(0, 39) + "…" : line));
          const region = isGroup ? (this.changed[number].size === 1 ? [...this.changed[number]][0] : -1) : this.nodes[number].region;
          const mixed = isGroup && this.changed[number].size > 1;
          const size = { width: 20 + 7.2 * Math.max(...short.map((line) => line.length)), height: 14 + 15 * short.length };
          items.push({ data: { id: child, parent, label: short.join("\n"), folded: isGroup && !opened, ...size,
            colour: region >= 0 ? colour(region) : mixed ? variable("--mixed") : variable(isGroup ? "--group" : "--node") } });
          layout.setNode(child, opened ? {} : { ...size });
          if (parent) layout.setParent(child, parent);
          if (opened) visit(number, child);
        }
      };
      visit(0, undefined);
      this.nodes.forEach((node, number) => {
        const target = this.shown(number);
        for (const maker of node.in) {
          const source = this.shown(maker);
          if (source !== target) edges.set(source + ">" + target, [source, target]);
        }
      });
      for (const [source, target] of edges.values()) layout.setEdge(source, target);
      dagre.layout(layout);
      for (const item of items) { const at = layout.node(item.data.id); item.position = { x: at.x, y: at.y }; }
      for (const [id, [source, target]] of edges) items.push({ data: { id, source, target } });
      this.cy.startBatch();
      this.cy.elements().remove();
      this.cy.style(this.style());
      this.cy.add(items);
      this.cy.endBatch();
      this.mark();
    }

    mark() {
      this.cy.batch(() => {
        this.cy.elements().removeClass("chosen paired");
        if (current >= 0) data.regions[current][this.side].forEach((number) => this.cy.getElementById(this.shown(number)).addClass("paired"));
        if (this.selected) this.cy.getElementById(this.selected).addClass("chosen");
      });
    }

    toggle(group) {
      if (this.open.has(group)) this.open.delete(group); else this.open.add(group);
      this.draw();
      this.centre(["g" + group]);
    }

    centre(ids) {
      const found = this.cy.collection(ids.map((id) => this.cy.getElementById(id)).filter((element) => element.nonempty()));
      if (!found.length) return;
      this.cy.fit(found.union(found.descendants()), 60);
      if (this.cy.zoom() > 1.1) { this.cy.zoom(1.1); this.cy.center(found); }
    }

    // Opens all around a node.
    reveal(number) {
      for (let group = this.nodes[number].group; group >= 0; group = this.groups[group].parent) this.open.add(group);
    }

    choose(item) {
      this.selected = item;
      const number = Number(item.slice(1));
      if (item[0] === "n" && this.nodes[number].region >= 0) current = this.nodes[number].region;
      panes.forEach((pane) => { if (pane !== this) pane.selected = null; pane.mark(); });
      describe(this, item);
    }

    act(item) {
      this.choose(item);
      if (item[0] === "g") { this.toggle(Number(item.slice(1))); return; }
      const region = this.nodes[Number(item.slice(1))].region;
      if (region >= 0) other(this).show(data.regions[region][other(this).side]);
    }

    show(numbers) {
      numbers.forEach((number) => this.reveal(number));
      this.draw();
      this.centre(numbers.map((number) => "n" + number));
    }

    neighbours(forwards) {
      const element = this.cy.getElementById(this.selected || "");
      return (forwards ? element.outgoers("node") : element.incomers("node")).map((node) => node.id());
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const first = () => this.cy.nodes().filter((node) => node.isChildless()).first().id();
      const steps = { ArrowDown: () => this.neighbours(true)[0], ArrowUp: () => this.neighbours(false)[0], ArrowRight: () => this.beside(1), ArrowLeft: () => this.beside(-1) };
      if (event.key in steps) {
        const item = this.selected && this.cy.getElementById(this.selected).nonempty() ? steps[event.key]() : first();
        if (item) { this.choose(item); this.cy.center(this.cy.getElementById(item)); }
      } else if (event.key === "Enter" && this.selected) this.act(this.selected);
      else if (event.key === "c" && this.selected) this.close();
      else if (event.key === "0") this.whole();
      else if (event.key === "+" || event.key === "-") this.cy.zoom({ level: this.cy.zoom() * (event.key === "+" ? 1.25 : 0.8), renderedPosition: { x: this.cy.width() / 2, y: this.cy.height() / 2 } });
      else return;
      event.preventDefault();
    }

    beside(step) {
      const row = this.cy.nodes().filter((node) => node.isChildless()).sort((a, b) => a.position("y") - b.position("y") || a.position("x") - b.position("x"));
      const place = row.toArray().findIndex((node) => node.id() === this.selected);
      const next = row[(place + step + row.length) % row.length];
      return next && next.id();
    }

    close() {
      const number = Number(this.selected.slice(1));
      const group = this.selected[0] === "n" ? this.nodes[number].group : this.open.has(number) ? number : this.groups[number].parent;
      if (group <= 0) return;
      this.open.delete(group);
      this.selected = "g" + group;
      this.draw();
      this.centre([this.selected]);
      describe(this, this.selected);
    }
  }

  let current = -1;
  const panes = [];
  const other = (pane) => panes[1 - panes.indexOf(pane)];

  function add(parent, tag, text, action) {
    const element = document.createElement(tag);
    element.textContent = text;
    if (action) { element.type = "button"; element.addEventListener("click", action); }
    parent.appendChild(element);
    return element;
  }

  function list(parent, heading, lines) {
    if (!lines.length) return;
    add(parent, "div", heading);
    const items = add(parent, "ul", "");
    lines.forEach((line) => add(items, "li", line));
  }

  function links(parent, heading, pane, numbers) {
    const line = add(parent, "p", `${heading}: `);
    if (!numbers.length) line.append("no node");
    numbers.slice(0, 60).forEach((number) => add(line, "button", `${pane.nodes[number].op} ${pane.nodes[number].name}`.trim(), () => {
      pane.show([number]);
      pane.choose("n" + number);
      pane.element.focus();
    }));
    if (numbers.length > 60) line.append(` and ${numbers.length - 60} more`);
  }

  function describeRegion(region) {
    const change = data.regions[region];
    add(details, "h3", `change ${region + 1} of ${data.regions.length}: ${change.verdict}`);
    list(details, "", change.words);
    links(details, "before", panes[0], change.before);
    links(details, "after", panes[1], change.after);
    const named = change.rules.filter((rule) => document.getElementById("rule-" + rule));
    if (named.length) {
      const line = add(details, "p", "by rule ");
      named.forEach((rule) => { const link = add(line, "a", rule + " "); link.href = "#rule-" + rule; link.addEventListener("click", () => { document.getElementById("rule-" + rule).open = true; }); });
    }
  }

  function describe(pane, item) {
    details.replaceChildren();
    const number = Number(item.slice(1));
    if (item[0] === "g") {
      add(details, "h3", `${pane.side}: group ${pane.groups[number].name}, ${pane.count[number]} nodes, ${pane.changed[number].size} changes in it`);
      return;
    }
    const node = pane.nodes[number];
    add(details, "h3", `${pane.side}: ${node.op} ${node.name}`);
    list(details, "attributes", node.attrs);
    list(details, "reads", node.reads.filter(Boolean));
    list(details, "makes", node.makes);
    if (node.region >= 0) describeRegion(node.region);
  }

  function showRegion(region) {
    if (!data.regions.length) return;
    current = (region + data.regions.length) % data.regions.length;
    const change = data.regions[current];
    panes.forEach((pane) => { pane.selected = null; pane.show(change[pane.side]); });
    details.replaceChildren();
    describeRegion(current);
    where.textContent = `change ${current + 1} of ${data.regions.length}: ${change.verdict}`;
  }

  function search(text) {
    if (!text) return;
    for (const pane of [panes[1], panes[0]]) {
      const number = pane.nodes.findIndex((node) => `${node.op} ${node.name} ${node.makes.join(" ")}`.toLowerCase().includes(text.toLowerCase()));
      if (number >= 0) { pane.show([number]); pane.choose("n" + number); return; }
    }
    where.textContent = "nothing found";
  }

  const began = performance.now();
  panes.push(new Pane("before", data.before));
  panes.push(new Pane("after", data.after));
  document.getElementById("next").addEventListener("click", () => showRegion(current + 1));
  document.getElementById("previous").addEventListener("click", () => showRegion(current < 0 ? -1 : current - 1));
  document.getElementById("search").addEventListener("change", (event) => search(event.target.value));
  document.querySelectorAll("button.show").forEach((button) => button.addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("graphs").scrollIntoView();
    showRegion(Number(button.dataset.region));
  }));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    if (event.key === "n") showRegion(current + 1);
    else if (event.key === "p") showRegion(current < 0 ? -1 : current - 1);
    else if (event.key === "/") document.getElementById("search").focus();
    else return;
    event.preventDefault();
  });
  where.textContent = data.regions.length ? `${data.regions.length} change${data.regions.length > 1 ? "s" : ""}` : "no changes";
  document.documentElement.dataset.drawn = String(Math.round(performance.now() - began));
  window.report = { panes, showRegion };
})();
