// SPDX-License-Identifier: Apache-2.0

const gpus = r.gpus ?? [], clients = r.clients ?? [], faults = r.faults ?? []
const times = [r.begin, r.end, ...gpus.flatMap(g => (g.samples ?? []).map(s => s.at)), ...clients.flatMap(c => [c.begin, c.end]), ...faults.map(f => f.at)].map(at).filter(t => !isNaN(t))
const start = isNaN(at(r.begin)) ? times.reduce((a, b) => Math.min(a, b), Infinity) : at(r.begin)
const stop = times.reduce((a, b) => Math.max(a, b), start), lasts = Math.max(stop - start, 1)
const x = t => isNaN(t) ? NaN : 100 * Math.min(Math.max((t - start) / lasts, 0), 1)
const runs = isNaN(at(r.end))

const place = (e, left, width) => { e.style.left = left + "%"; if (width != null) e.style.width = width + "%"; return e }
const svg = (box, name, path) => {
	const s = document.createElementNS("http://www.w3.org/2000/svg", "svg"), p = document.createElementNS(s.namespaceURI, "path")
	s.setAttribute("viewBox", box); s.setAttribute("aria-hidden", "true"); p.setAttribute("d", path); p.setAttribute("class", name)
	s.append(p)
	return s
}
const row = (name, kind, track, ...values) => el("div", "row " + kind, name, track, el("div", "values", ...values))
const track = (gpu, ...children) => el("div", "track", ...children, ...faults.filter(f => f.gpu === gpu).map(f => place(el("div", "error"), x(at(f.at)))))
const ticks = () => {
	const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].find(s => lasts / s <= 5) ?? 86400 * Math.ceil(lasts / 86400 / 5)
	const line = el("div", "track ticks")
	for (let t = 0; t <= lasts * .97; t += step) line.append(place(el("span", "", lasting(t)), 100 * t / lasts))
	return row(el("span"), "ticks-row", line)
}
// A sample is for the whole time since the previous sample, so it is a step. A sample without a value is a gap.
const area = (g, key, whole) => {
	let path = "", open = false, last = start
	for (const s of g.samples) {
		const part = s[key] / whole, from = 10 * x(last), to = 10 * x(at(s.at)), y = 100 - 100 * Math.min(part, 1)
		if (part < 0) { path += open ? "V100Z" : ""; open = false } else { path += (open ? "" : `M${from} 100`) + `V${y.toFixed(1)}H${to.toFixed(1)}`; open = true }
		last = at(s.at)
	}
	const s = svg("0 0 1000 100", "", path + (open ? "V100Z" : ""))
	s.setAttribute("class", "area"); s.setAttribute("preserveAspectRatio", "none")
	return s
}
const memory = "used_mib"
const nameOf = g => g && (g.node ? g.node + " " : "") + g.index
const known = (g, f) => (g.samples ?? []).length > 0 && r.means[gpus.indexOf(g)][f.key] >= 0
const plot = (g, n) => r.figures.map((f, i) => [f, r.scales[n][i]]).filter(([f]) => known(g, f)).map(([f, scale]) =>
	row(el("div", "", el("b", "", f.name), el("small", "", "0 to " + scale.to)), "figure", track(n, area(g, f.key, scale.full || 1)), ...scale.values.map(v => el("div", "", v))))

// The shapes of the ends differ, because some readers cannot distinguish the colours.
const marks = {
	ended: ["", "M9 2h2v16h-2z", "ended with status 0"],
	bad: ["bad", "M10 2l8 8-8 8-8-8z", "ended by a signal, or with another status"],
	fault: ["bad", "M3 5l2-2 5 5 5-5 2 2-5 5 5 5-2 2-5-5-5 5-2-2 5-5z", "ended by a fatal GPU error"],
	epilog: ["", "M4 4h12v12h-12z", "outlived the job, and was ended by the epilog"],
	unknown: ["unknown", "M5 10a5 5 0 0 1 10 0a5 5 0 0 1-10 0z", "how it ended is not known"],
	runs: ["", "M10 2l9 8-9 8z", "runs"],
}
const endOf = c => c.ending === "fault" ? ["fault", "GPU error"] : c.ending === "epilog" ? ["epilog", "at epilog"] : c.exit && c.exit !== "status 0" ? ["bad", shown(c.exit, 12)]
	: isNaN(at(c.end)) && runs ? ["runs", "runs"] : c.exit ? ["ended", c.exit] : ["unknown", unknown]
const lane = (c, n) => {
	const from = isNaN(at(c.begin)) ? 0 : x(at(c.begin)), to = Math.max(from, isNaN(at(c.end)) ? 100 : x(at(c.end))), [kind, word] = endOf(c)
	const bar = place(el("div", "bar", shown(c.program, 24)), from, to - from), mark = svg("0 0 20 20", marks[kind][0], marks[kind][1])
	bar.title = `${shown(c.program, 24) || "program not known"}, pid ${c.pid}, ${c.end_text}`
	mark.setAttribute("class", "mark")
	const name = c.rank < 0 ? "PID " + c.pid : (c.step ? shown("step " + c.step, 10) + " " : "") + "rank " + c.rank
	const line = row(el("span", "", name), "lane", track(n, bar, place(mark, to)), el("span", "", c.sms > 0 ? c.sms + " SMs" : "all SMs"), el("span", "", c.peak_mib > 0 ? gib(c.peak_mib) : "–"), el("span", "", word))
	if (c.lived) line.append(el("div", "lived", capital(c.lived)))
	return line
}
const first = {}
for (const c of clients) first[c.step] = Math.min(first[c.step] ?? Infinity, at(c.begin) || 0)
const order = [...clients].sort((a, b) => first[a.step] - first[b.step] || a.rank - b.rank || (at(a.begin) || 0) - (at(b.begin) || 0))

document.title = `Job ${r.job}: use of its GPUs`
const peak = gpus.reduce((m, g, n) => known(g, { key: memory }) && r.means[n][memory] > m[0] ? [r.means[n][memory], g.memory_mib] : m, [0, 0])
const time = isNaN(at(r.begin)) ? "" : (runs ? "in the first " : "in ") + lasting(stop - start) + ", "
add(el("h1", "", document.title), el("p", "verdict", shown(r.verdict, 400)),
	el("p", "", capital(time + (r.clients_seen ? `${count(r.clients_seen, "client")} used ${count(gpus.length, "GPU")}` + (peak[0] > 0 ? ` and at most ${gib(...peak)} of a GPU's memory` : "") : "no client of MPS was seen") + ".")),
	r.advice && el("p", "", r.advice))
const incidents = r.incidents ?? []
add(incidents.length && el("ul", "", ...incidents.slice(0, 20).map(i => el("li", "", el("time", "", clock(i.at)), " ", el("bdi", "", shown(i.text, 400))))))
const remarks = [runs && times.length ? "The job still runs: the page shows the part that is known." : "", ...r.remarks,
	incidents.length > 20 ? count(incidents.length - 20, "more incident") + ": see the table of the clients." : "", r.clients_seen > clients.length ? `The page has ${clients.length} of ${r.clients_seen} clients.` : ""]
add(...remarks.filter(Boolean).map(t => el("p", "", t)))
add(list("facts", [["job name", r.name], ["user", r.user], ["node", r.node], ["partition", r.partition], ["account", r.account], ["rule", r.no_mps ? "none: the job ran without MPS" : shown(r.rule) + (r.share ? ", which grants share " + shown(r.share) : "")],
	["begin", clock(r.begin)], ["end", runs ? "still runs" : clock(r.end)], ["clients", `${r.clients_seen}, at most ${r.clients_peak} at the same time`], ["share of a client", r.shares], ["GPU hours", r.gpu_hours.toFixed(2)],
	["energy", r.energy_j > 0 ? energy(r.energy_j) : ""]]))
gpus.forEach((g, n) => {
	const strips = plot(g, n), lanes = order.filter(c => c.gpu === n).map(c => lane(c, n)), absent = r.figures.filter(f => !known(g, f)).map(f => f.name)
	add(el("h2", "", "GPU " + nameOf(g)), list("weak", [["model", g.name], ["SMs", positive(g.sms)], ["memory", gib(g.memory_mib)], ["UUID", g.uuid], ["percentages from", g.source || "nothing: there are none"]]),
		el("h3", "", "Use over time"), ...(strips.length ? [...strips, ticks()] : [el("p", "", "There are no samples of this GPU.")]), strips.length && absent.length && el("p", "weak", `Not known: ${absent.join(", ")}.`),
		el("h3", "", "Clients"), ...(lanes.length ? [row(el("span", "", "client"), "head", el("span"), el("span", "", "share"), el("span", "", "peak"), el("span", "", "end")), ...lanes, ticks()] : [el("p", "", "No client was seen on this GPU.")]))
})
add(clients.length && el("dl", "legend", ...Object.values(marks).map(([name, path, means]) => el("div", "", el("dt", "", svg("0 0 20 20", name, path)), el("dd", "", means)))), el("h2", "", "In figures"))
add(table("GPUs: means over the time of the samples", ["GPU", ...r.figures.map(f => f.name), "energy", "clients"], gpus.map((g, n) => [nameOf(g),
	...r.figures.map((f, i) => known(g, f) ? r.scales[n][i].mean : unknown), energy(g.energy_j), clients.filter(c => c.gpu === n).length])))
add(clients.length && table("Clients: ranks, steps and programs are what the processes say", ["rank", "step", "-program", "PID", "GPU", "share, SMs", "memory limit", "max. memory", "-begin", "-lasted", "-end"], order.map(c =>
	[c.rank < 0 ? unknown : c.rank, shown(c.step) || unknown, shown(c.program) || unknown, c.pid, nameOf(gpus[c.gpu]) ?? unknown, c.sms > 0 ? c.sms : "all", c.limit_mib > 0 ? gib(c.limit_mib) : "none", gib(c.peak_mib), clock(c.begin),
		isNaN(at(c.end) - at(c.begin)) ? unknown : lasting(at(c.end) - at(c.begin)), capital(c.end_text + (c.lived ? ". " + c.lived : ""))])))
add(faults.length && table("Fatal GPU errors, with the client that began each", ["-time", "GPU", "PID"], faults.map(f => [clock(f.at), nameOf(gpus[f.gpu]) ?? unknown, positive(f.pid)])))
add(el("h2", "", "Words"), list("words", [...r.figures.map(f => [f.name, f.means]), ["share", "the maximum number of SMs that a client's kernels use at the same time"], ["neighbour", "another client on the same GPU"]]))
