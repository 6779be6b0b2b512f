// SPDX-License-Identifier: Apache-2.0

const day = text => text.slice(0, 10), number = h => h > 0 && h < 100 ? h.toFixed(1) : Math.round(h).toLocaleString("en")
const of = (part, whole) => whole > 0 ? `${Math.round(100 * part / whole)} %` : "-"
// the columns of the table: key, name, unit and meaning
const columns = [
	["jobs", "jobs", "", "jobs that ended in the time; a job of several nodes is one"],
	["gpu_hours", "GPU hours", "h", "the hours for which jobs held GPUs; a part of a GPU counts as that part"],
	["never_used_hours", "never used", "h", "GPU hours of GPUs on which the job never had a process"],
	["no_process_hours", "no process", "h", "GPU hours of other GPUs, while the job had no process there"],
	["sm_active", "SM active", "%", "how much of the processors of whole GPUs had work, on average (Hopper and newer)"],
	["dram", "DRAM", "%", "how much of their memory's bandwidth was in use (Hopper and newer)"],
	["memory", "memory", "%", "how much of their memory was in use at most, on average over the jobs' GPU hours"],
	["more_fit", "more fit", "", "jobs of which more processes fit on a GPU, by memory"],
	["pay", "pay", "", "jobs that more processes on a GPU, by MPS, would make faster"],
	["no_gain", "no gain", "", "jobs that more processes would not make faster: they fill their GPUs"],
	["not_known", "not known", "", "jobs whose figures do not show it"],
	["win_hours", "to win", "h", "GPU hours that more processes on a GPU would save; beside it, the least and the most to expect"],
]
const sum = (row, key) => row.sums[key] ?? 0
const cell = (row, key, unit) => unit === "h" ? number(sum(row, key)) : unit === "%" ? percent(sum(row, key)) : String(sum(row, key))
const win = row => sum(row, "win_hours") > 0 ? `${number(sum(row, "win_hours"))} (${number(sum(row, "win_hours_low"))} to ${number(sum(row, "win_hours_high"))})` : "0"
const max = (rows, of) => rows.reduce((m, row) => Math.max(m, of(row)), 0)

// A bar has its parts side by side. The longest bar is as wide as the page.
const bars = (rows, kinds, whole, ...values) => {
	const longest = max(rows, whole)
	return rows.map(row => {
		const track = el("div", "track")
		let left = 0
		for (const [kind, , part] of kinds) {
			const width = longest > 0 ? 100 * Math.max(part(row), 0) / longest : 0, bar = el("div", "bar " + kind)
			bar.style.left = left + "%"; bar.style.width = width + "%"
			if (width > 0) track.append(bar)
			left += width
		}
		return el("div", "row", el("bdi", "", shown(row.name)), track, el("div", "", ...values.map(v => v(row))))
	})
}
const legend = kinds => el("dl", "legend", ...kinds.map(([kind, name]) => el("div", "", el("dt", "", el("span", "swatch " + kind)), el("dd", "", name))))
const held = [["", "with a process", r => sum(r, "gpu_hours") - sum(r, "no_process_hours") - sum(r, "never_used_hours")], ["idle", "without a process", r => sum(r, "no_process_hours")], ["never", "on GPUs that the job never used", r => sum(r, "never_used_hours")]]
const gains = [["", "would gain", r => sum(r, "pay")], ["idle", "not known", r => sum(r, "not_known")], ["full", "would not gain", r => sum(r, "no_gain")]]
const by = { user: "user", account: "account", name: "name of the job", partition: "partition" }[r.by] ?? r.by
const most = r.rows.slice(0, 20), some = r.rows.slice(0, 100)

document.title = `Use of GPUs from ${day(r.since)} to ${day(r.until)}`
add(el("h1", "", document.title), el("p", "verdict", shown(r.verdict, 400)))
if (r.rows.length > 0) {
	add(el("h2", "", "GPU hours by " + by), ...bars(most, held, row => sum(row, "gpu_hours"), row => `${number(sum(row, "gpu_hours"))} h, ${of(sum(row, "never_used_hours") + sum(row, "no_process_hours"), sum(row, "gpu_hours"))} without a process`), legend(held))
	add(el("h2", "", "Would more processes on a GPU help?"), ...bars(most, gains, row => sum(row, "jobs"), row => `${count(sum(row, "jobs"), "job")}, ${number(sum(row, "win_hours"))} h to win`), legend(gains))
	add(r.changes.length && el("h2", "", "What to change"), r.changes.length && table("In the scripts of users, the most GPU hours first", ["-user, name of the job", "-line in the script", "GPU hours", "jobs"],
		r.changes.slice(0, 20).map(c => [el("bdi", "", shown(c.name, 130)), el("code", "", shown(c.line, 200)), number(sum(c, "gpu_hours")), sum(c, "jobs")])))
	const figures = (title, columns) => table(title, ["-" + by, ...columns.map(c => c[1])], [...some, r.all].map(row => [el("bdi", "", shown(row.name)), ...columns.map(([key, , unit]) => key === "win_hours" ? win(row) : cell(row, key, unit))]))
	add(el("h2", "", "In figures"), figures("GPU hours and the use of GPUs, the most GPU hours first", columns.slice(0, 7)), figures("Jobs by what more processes on a GPU would do", columns.slice(7)))
}
add(r.rows.length > some.length && el("p", "", `${count(r.rows.length - some.length, "line")} more: see mpsctl waste --csv.`))
add(...Object.entries(r.left_out ?? {}).sort().map(([text, n]) => el("p", "weak", `${text}: ${n}.`)))
add(r.rows.length && el("h2", "", "Words"), r.rows.length && list("words", columns.map(c => [c[1], c[3]])))
