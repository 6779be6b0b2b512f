// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// typeChecker goes through the expressions of a policy when it is read and says what values they can have. It refuses what can
// fail for any job, and what it does not know, so that evaluating what it lets pass never fails.
type typeChecker struct {
	locals map[string]*local
	order  []*local // those that depend on the job, each behind those that it depends on
	loop   map[string]exprType
	level  int                  // of the local that is being judged: above those that it depends on
	needs  policy.Lookups       // what the expressions mention
	fixed  map[string]cty.Value // locals that depend on no job
	wrong  hcl.Diagnostics

	functions map[string]function.Function
}

func newTypeChecker(locals map[string]*local) *typeChecker {
	return &typeChecker{locals: locals, fixed: map[string]cty.Value{}, functions: functions()}
}

// local is a name of a locals block.
type local struct {
	name   string
	expr   hclsyntax.Expression
	where  hcl.Range
	shape  exprType
	level  int // 0: its job-dependent part names no other local
	judged bool
	open   bool // is being judged: to meet it again is a cycle
}

// maxExpression bounds an expression in bytes, since walking one takes stack.
const maxExpression = 16 << 10

func (j *typeChecker) mistake(where hcl.Range, summary, format string, args ...any) exprType {
	j.wrong = append(j.wrong, mistake(where, summary, format, args...))
	return wrongType()
}

func (j *typeChecker) mayFail(where hcl.Range, format string, args ...any) hcl.Diagnostics {
	return hcl.Diagnostics{mistake(where, "May fail", format, args...)}
}

// value is the shape of an attribute's value. What may fail is wrong here: nothing is around it that would catch it.
func (j *typeChecker) value(e hclsyntax.Expression) exprType {
	if where := e.Range(); where.End.Byte-where.Start.Byte > maxExpression {
		return j.mistake(where, "Too long", "an expression has at most %d bytes: take it apart with locals", maxExpression)
	}
	s := j.settled(e, j.typeOf(e))
	j.wrong = append(j.wrong, s.may...)
	if s.kind == nothing && len(j.wrong) == 0 {
		return j.mistake(e.Range(), "No value", "this can never come to a value")
	}
	s.may = nil
	return s
}

// settled works out what is fixed.
func (j *typeChecker) settled(e hclsyntax.Expression, s exprType) exprType {
	if !s.fixed || s.known != cty.NilVal || s.kind == nothing && len(s.may) == 0 {
		return s
	}
	v, diags := e.Value(j.constants())
	if diags.HasErrors() {
		s.may = diags
		return s
	}
	return typeOfValue(v)
}

// constants are what a fixed expression can name.
func (j *typeChecker) constants() *hcl.EvalContext {
	return &hcl.EvalContext{Variables: map[string]cty.Value{"local": cty.ObjectVal(j.fixed)}, Functions: j.functions}
}

// typeOf is the shape of an expression. The kinds of node that are not here are not of the language.
func (j *typeChecker) typeOf(e hclsyntax.Expression) exprType {
	switch e := e.(type) {
	case *hclsyntax.ParenthesesExpr:
		return j.typeOf(inner(e))
	case *hclsyntax.TemplateWrapExpr:
		return j.typeOf(e.Wrapped)
	case *hclsyntax.LiteralValueExpr:
		return j.literal(e)
	case *hclsyntax.TemplateExpr:
		return j.template(e)
	case *hclsyntax.ScopeTraversalExpr:
		return j.settled(e, j.named(e))
	case *hclsyntax.RelativeTraversalExpr:
		return j.settled(e, j.steps(j.typeOf(e.Source), e.Traversal, e.Source.Range()))
	case *hclsyntax.IndexExpr:
		return j.settled(e, j.index(e))
	case *hclsyntax.FunctionCallExpr:
		return j.call(e)
	case *hclsyntax.ConditionalExpr:
		return j.conditional(e)
	case *hclsyntax.BinaryOpExpr:
		return j.binary(e)
	case *hclsyntax.UnaryOpExpr:
		return j.unary(e)
	case *hclsyntax.TupleConsExpr:
		return j.list(e)
	case *hclsyntax.ObjectConsExpr:
		return j.object(e)
	case *hclsyntax.ForExpr:
		return j.forEach(e)
	}
	return j.mistake(e.Range(), "Not in this language", "a policy has operators, function calls, \"${…}\", lists, objects, for and ?: alone")
}

func inner(e *hclsyntax.ParenthesesExpr) hclsyntax.Expression { return e.Expression }

// The bounds of a number in a policy. No arithmetic on so few of them leaves what can be computed with.
const (
	maxNumber = 1e15
	minNumber = 1e-9
)

func (j *typeChecker) literal(e *hclsyntax.LiteralValueExpr) exprType {
	if e.Val.IsNull() {
		return j.mistake(e.Range(), "No null", "nothing is null here: what Slurm does not say is \"\", 0 or []")
	}
	s := typeOfValue(e.Val)
	if size := math.Abs(s.min); s.kind == number && (size > maxNumber || size < minNumber && e.Val.AsBigFloat().Sign() != 0) {
		return j.mistake(e.Range(), "Out of range", "a number is 0, or from %g to %g", minNumber, maxNumber)
	}
	return s
}

// operand holds an operand or an argument to its kind.
func (j *typeChecker) operand(e hclsyntax.Expression, want kind, of string) exprType {
	s := j.typeOf(e)
	if s.kind != want && s.kind != nothing {
		return j.mistake(e.Range(), "Wrong type", "%s takes %s, and this is %s", of, want, s.kind)
	}
	return s
}

// after is a shape that came out of others.
func (s exprType) after(from ...exprType) exprType {
	s.fixed, s.may = true, slices.Clip(s.may)
	for _, f := range from {
		s.fixed = s.fixed && f.fixed
		s.may = append(s.may, f.may...)
	}
	return s
}

func (j *typeChecker) template(e *hclsyntax.TemplateExpr) exprType {
	whole := exprType{kind: text, words: []string{""}}
	var parts []exprType
	for _, part := range e.Parts {
		s := j.typeOf(part)
		if !s.single() {
			s = j.mistake(part.Range(), "Wrong type", "${…} takes a string, a number or a truth, and this is %s: join(\", \", …) makes a string of a list", s.kind)
		}
		parts = append(parts, s)
		whole = whole.with(s)
	}
	return whole.bounded().after(parts...)
}

// with is a string with another part behind it.
func (s exprType) with(part exprType) exprType {
	if part.kind != text || part.anything || s.anything || len(s.words)*len(part.words) > maxWords {
		s.anything = true
		return s
	}
	var words []string
	for _, head := range s.words {
		for _, tail := range part.words {
			words = append(words, head+tail)
		}
	}
	s.words = wordsOf(words)
	return s
}

// named is the shape of a variable and what is taken out of it.
func (j *typeChecker) named(e *hclsyntax.ScopeTraversalExpr) exprType {
	root := e.Traversal.RootName()
	if s, ok := j.loop[root]; ok {
		return j.steps(s, e.Traversal[1:], e.Range())
	}
	attributes, known := namespaces[root]
	if !known && root != "local" {
		return j.mistake(e.Traversal[0].SourceRange(), "Unknown variable", "There is no variable named %q.%s", root, suggestRoot(root))
	}
	if len(e.Traversal) == 1 {
		return j.mistake(e.Range(), "Incomplete name", "%s has attributes: write %s.NAME", root, root)
	}
	name, ok := attributeOf(e.Traversal[1])
	where := e.Traversal[1].SourceRange()
	if !ok {
		return j.mistake(where, "Incomplete name", "%s has attributes: write %s.NAME", root, root)
	}
	if root == "local" {
		return j.steps(j.local(name, where), e.Traversal[2:], e.Range())
	}
	v, ok := variableNamed(root, name)
	if !ok {
		return j.mistake(where, "Unsupported attribute", "%s has no attribute named %q.%s", root, name, suggest(name, namesOf(attributes)))
	}
	if v.needs != nil {
		*v.needs(&j.needs) = true
	}
	return j.steps(v.shape, e.Traversal[2:], e.Range())
}

func namesOf(variables []variable) []string {
	names := make([]string, len(variables))
	for i, v := range variables {
		names[i] = v.name
	}
	return names
}

func suggestRoot(root string) string {
	for _, space := range []string{"job", "node", "gpu"} {
		if _, ok := variableNamed(space, root); ok {
			return fmt.Sprintf(" Did you mean %s.%s?", space, root)
		}
	}
	return suggest(root, []string{"job", "node", "gpu", "local"})
}

// attributeOf is the name of a step: .name or ["name"].
func attributeOf(step hcl.Traverser) (string, bool) {
	switch step := step.(type) {
	case hcl.TraverseAttr:
		return step.Name, true
	case hcl.TraverseIndex:
		if step.Key.Type() == cty.String {
			return step.Key.AsString(), true
		}
	}
	return "", false
}

// local judges a local when it is first named.
func (j *typeChecker) local(name string, where hcl.Range) exprType {
	l := j.locals[name]
	switch {
	case l == nil:
		return j.mistake(where, "Unsupported attribute", "there is no local named %q.%s", name, suggest(name, sortedKeys(j.locals)))
	case l.open:
		return j.mistake(where, "Cycle", "local.%s is made of itself", name)
	}
	j.checkLocal(l)
	if !l.shape.fixed {
		j.level = max(j.level, l.level+1)
	}
	return l.shape
}

func (j *typeChecker) checkLocal(l *local) {
	if l.judged {
		return
	}
	loop, level := j.loop, j.level
	l.open, j.loop, j.level = true, nil, 0
	l.shape = j.value(l.expr)
	l.open, l.judged, l.level = false, true, j.level
	j.loop, j.level = loop, level
	switch {
	case l.shape.fixed && l.shape.known != cty.NilVal:
		j.fixed[l.name] = l.shape.known
	default:
		l.shape.fixed = false
		j.order = append(j.order, l)
	}
}

// steps takes attributes and elements out of a value.
func (j *typeChecker) steps(s exprType, steps hcl.Traversal, where hcl.Range) exprType {
	for _, step := range steps {
		s = j.step(s, step, where)
	}
	return s
}

func (j *typeChecker) step(s exprType, step hcl.Traverser, where hcl.Range) exprType {
	if s.kind == nothing {
		return s
	}
	name, named := attributeOf(step)
	switch {
	case s.kind == object && named:
		attr, ok := s.attrs[name]
		if !ok {
			return j.mistake(step.SourceRange(), "Unsupported attribute", "the object has no attribute named %q.%s", name, suggest(name, sortedKeys(s.attrs)))
		}
		return attr.after(s)
	case s.kind == list && !named:
		return j.element(s, where)
	}
	return j.mistake(step.SourceRange(), "Unsupported attribute", "this is %s and has none", s.kind)
}

// element is an element of a list, which need not be there.
func (j *typeChecker) element(s exprType, where hcl.Range) exprType {
	elem := s.elem.after(s)
	elem.known = cty.NilVal
	elem.may = append(elem.may, j.mayFail(where, "the list may be shorter: say with try(…, DEFAULT) what else")...)
	return elem
}

func (j *typeChecker) index(e *hclsyntax.IndexExpr) exprType {
	collection, key := j.typeOf(e.Collection), j.typeOf(e.Key)
	switch {
	case collection.kind == nothing || key.kind == nothing:
		return wrongType()
	case collection.kind == list && key.kind == number:
		return j.element(exprType{elem: collection.elem}, e.Range()).after(collection, key)
	case collection.kind == object && key.kind == text:
		return j.anyAttribute(collection, e).after(collection, key)
	}
	return j.mistake(e.Key.Range(), "Wrong type", "an element of a list is found by a number and an attribute of an object by a string: this looks into %s by %s", collection.kind, key.kind)
}

// anyAttribute is the attribute of an object that a name chooses which is not known yet.
func (j *typeChecker) anyAttribute(s exprType, e *hclsyntax.IndexExpr) exprType {
	joined := wrongType()
	for _, name := range sortedKeys(s.attrs) {
		attr := s.attrs[name]
		if !joinable(joined, attr) {
			return j.mistake(e.Collection.Range(), "Wrong type", "to be chosen from by name, its attributes must be of one kind: %q is %s", name, attr.kind)
		}
		joined = join(joined, attr)
	}
	joined.may = j.mayFail(e.Range(), "the object may have no such attribute: say with try(…, DEFAULT) or lookup(OBJECT, NAME, DEFAULT) what else")
	return joined
}

func (j *typeChecker) call(e *hclsyntax.FunctionCallExpr) exprType {
	function, ok := builtins[e.Name]
	if !ok {
		return j.mistake(e.NameRange, "Call to unknown function", "There is no function named %q.%s", e.Name, suggest(e.Name, sortedKeys(builtins)))
	}
	if e.ExpandFinal {
		return j.mistake(e.Range(), "Not in this language", "the arguments of a function are written out, not expanded by ...")
	}
	if !function.fits(len(e.Args)) {
		return j.mistake(e.Range(), "Wrong number of arguments", "%s takes %s, not %d", e.Name, function.wants(), len(e.Args))
	}
	args := make([]exprType, len(e.Args))
	wrong := false
	for i, arg := range e.Args {
		args[i] = j.argument(e.Name, function.taken(i), arg)
		wrong = wrong || args[i].kind == nothing && len(args[i].may) == 0
	}
	if wrong {
		return wrongType()
	}
	s := function.shapes(j, e, args)
	if e.Name == "try" || e.Name == "can" || s.kind == nothing {
		for i := range args {
			args[i].may = nil
		}
	}
	return s.after(args...)
}

func (j *typeChecker) argument(of string, want kind, e hclsyntax.Expression) exprType {
	if want == nothing {
		return j.typeOf(e)
	}
	s := j.operand(e, want, of)
	if s.kind == nothing && len(s.may) > 0 { // the element of []
		s.kind = want
		if want == list {
			s.elem = &exprType{}
		}
	}
	return s
}

func (j *typeChecker) conditional(e *hclsyntax.ConditionalExpr) exprType {
	condition := j.operand(e.Condition, truth, "?:")
	yes, no := j.typeOf(e.TrueResult), j.typeOf(e.FalseResult)
	if !yes.single() || !no.single() || !joinable(yes, no) {
		return j.mistake(e.Range(), "Wrong type", "?: chooses between two strings, numbers or truths, and these are %s and %s", yes.kind, no.kind)
	}
	s := join(yes, no)
	s.may = nil
	return s.after(condition, yes, no)
}

// operators are the operators that take two of a kind, by what hcl calls them.
var operators = map[*hclsyntax.Operation]struct {
	sign  string
	takes kind
	shape func(j *typeChecker, e *hclsyntax.BinaryOpExpr, a, b exprType) exprType
}{
	hclsyntax.OpLogicalAnd:         {"&&", truth, truthOf},
	hclsyntax.OpLogicalOr:          {"||", truth, truthOf},
	hclsyntax.OpEqual:              {"==", nothing, compared},
	hclsyntax.OpNotEqual:           {"!=", nothing, compared},
	hclsyntax.OpGreaterThan:        {">", number, truthOf},
	hclsyntax.OpGreaterThanOrEqual: {">=", number, truthOf},
	hclsyntax.OpLessThan:           {"<", number, truthOf},
	hclsyntax.OpLessThanOrEqual:    {"<=", number, truthOf},
	hclsyntax.OpAdd: {"+", number, func(_ *typeChecker, _ *hclsyntax.BinaryOpExpr, a, b exprType) exprType {
		return computed(a.integer && b.integer, a.min+b.min, a.max+b.max)
	}},
	hclsyntax.OpSubtract: {"-", number, func(_ *typeChecker, _ *hclsyntax.BinaryOpExpr, a, b exprType) exprType {
		return computed(a.integer && b.integer, a.min-b.max, a.max-b.min)
	}},
	hclsyntax.OpMultiply: {"*", number, func(_ *typeChecker, _ *hclsyntax.BinaryOpExpr, a, b exprType) exprType {
		return computed(a.integer && b.integer, a.min*b.min, a.min*b.max, a.max*b.min, a.max*b.max)
	}},
	hclsyntax.OpDivide: {"/", number, quotient},
	hclsyntax.OpModulo: {"%", number, remainder},
}

func (j *typeChecker) binary(e *hclsyntax.BinaryOpExpr) exprType {
	operator, ok := operators[e.Op]
	if !ok {
		return j.mistake(e.Range(), "Not in this language", "there is no such operator")
	}
	a, b := j.typeOf(e.LHS), j.typeOf(e.RHS)
	for _, side := range []struct {
		expr  hclsyntax.Expression
		shape *exprType
	}{{e.LHS, &a}, {e.RHS, &b}} {
		if operator.takes != nothing && side.shape.kind != operator.takes && side.shape.kind != nothing {
			*side.shape = j.mistake(side.expr.Range(), "Wrong type", "%s takes %s, and this is %s", operator.sign, operator.takes, side.shape.kind)
		}
	}
	return operator.shape(j, e, a, b).after(a, b)
}

func truthOf(*typeChecker, *hclsyntax.BinaryOpExpr, exprType, exprType) exprType { return anyTruth() }

// compared refuses what is never equal: hcl says false of a number and a string without a word.
func compared(j *typeChecker, e *hclsyntax.BinaryOpExpr, a, b exprType) exprType {
	if !same(a, b) {
		return j.mistake(e.Range(), "Never equal", "this compares %s with %s", a.kind, b.kind)
	}
	if !a.single() || !b.single() {
		return j.mistake(e.Range(), "Wrong type", "== and != compare numbers, strings and truths: see contains and length for lists")
	}
	return anyTruth()
}

// divisible refuses a divisor that can be 0. Nothing would catch it: hcl makes an infinity of it, which is no error.
func divisible(j *typeChecker, e *hclsyntax.BinaryOpExpr, divisor exprType) bool {
	if divisor.kind != number || divisor.min > 0 || divisor.max < 0 {
		return true
	}
	j.mistake(e.RHS.Range(), "Division by zero", "this can be 0: write max(1, …)")
	return false
}

func quotient(j *typeChecker, e *hclsyntax.BinaryOpExpr, a, b exprType) exprType {
	if !divisible(j, e, b) {
		return wrongType()
	}
	return computed(false, a.min/b.min, a.min/b.max, a.max/b.min, a.max/b.max)
}

func remainder(j *typeChecker, e *hclsyntax.BinaryOpExpr, a, b exprType) exprType {
	if !divisible(j, e, b) {
		return wrongType()
	}
	size := max(math.Abs(b.min), math.Abs(b.max))
	s := ranged(a.integer && b.integer, -size, size)
	if a.min >= 0 {
		s.min = 0
	}
	return s
}

func (j *typeChecker) unary(e *hclsyntax.UnaryOpExpr) exprType {
	if e.Op == hclsyntax.OpLogicalNot {
		return anyTruth().after(j.operand(e.Val, truth, "!"))
	}
	s := j.operand(e.Val, number, "-")
	return ranged(s.integer, -s.min, -s.max).after(s)
}

func (j *typeChecker) list(e *hclsyntax.TupleConsExpr) exprType {
	elem := wrongType()
	var items []exprType
	for _, item := range e.Exprs {
		s := j.typeOf(item)
		if !s.single() || !same(elem, s) {
			s = j.mistake(item.Range(), "Wrong type", "a list has numbers, strings or truths of one kind: this is %s", s.kind)
		}
		items = append(items, s)
		elem = join(elem, s)
	}
	elem.may = nil
	return listOf(elem).after(items...)
}

func (j *typeChecker) object(e *hclsyntax.ObjectConsExpr) exprType {
	s := exprType{kind: object, attrs: map[string]exprType{}}
	var items []exprType
	for _, item := range e.Items {
		key, diags := item.KeyExpr.Value(nil)
		if diags.HasErrors() || key.IsNull() || key.Type() != cty.String {
			return j.mistake(item.KeyExpr.Range(), "Variables not allowed", "an attribute of an object has a constant name")
		}
		name := key.AsString()
		if _, twice := s.attrs[name]; twice {
			return j.mistake(item.KeyExpr.Range(), "Set twice", "the object has an attribute %q already", name)
		}
		value := j.typeOf(item.ValueExpr)
		items = append(items, value)
		value.may = nil
		s.attrs[name] = value
	}
	return s.after(items...)
}

// forEach makes a list of a list. One within another is refused: a job's lists are as long as its user likes, and their
// product would be too.
func (j *typeChecker) forEach(e *hclsyntax.ForExpr) exprType {
	switch {
	case e.KeyExpr != nil:
		return j.mistake(e.Range(), "Not in this language", "for makes lists: [for x in LIST : VALUE if CONDITION]")
	case j.loop != nil:
		return j.mistake(e.Range(), "Not in this language", "a for stands in no other")
	}
	from := j.operand(e.CollExpr, list, "for")
	if from.kind == nothing {
		return wrongType()
	}
	each := *from.elem
	each.fixed, each.known = false, cty.NilVal
	j.loop = map[string]exprType{e.ValVar: each}
	if e.KeyVar != "" {
		j.loop[e.KeyVar] = numbers(0, math.MaxInt32)
	}
	defer func() { j.loop = nil }()
	condition := anyTruth()
	if e.CondExpr != nil {
		condition = j.operand(e.CondExpr, truth, "if")
	}
	value := j.typeOf(e.ValExpr)
	if !value.single() {
		value = j.mistake(e.ValExpr.Range(), "Wrong type", "a list has numbers, strings or truths: this is %s", value.kind)
	}
	elem := value
	elem.may, elem.fixed = nil, false
	s := listOf(elem).after(from, condition, value)
	s.fixed = false
	return s
}

// suggest is the one of names that is one slip away from a word.
func suggest(word string, names []string) string {
	for _, name := range names {
		if almostSame(word, name) {
			return fmt.Sprintf(" Did you mean %q?", name)
		}
	}
	return ""
}

// almostSame says that two words differ by one letter changed, left out or put in, or by two changed places, or that one
// begins with the other.
func almostSame(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(a) >= 3 && strings.HasPrefix(b, a) {
		return true
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) == len(b) {
		return len(a) > 2 && i < len(a) && (a[i+1:] == b[i+1:] || i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:])
	}
	return len(b) == len(a)+1 && len(b) > 2 && a[i:] == b[i+1:]
}

func sortedKeys[T any](m map[string]T) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
