// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/slurm-mps/slurm-mps/policy"
	"github.com/slurm-mps/slurm-mps/site/words"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// typeChecker checks the expressions of a policy when the policy is read. It refuses unknown names, wrong types and
// syntax that the language does not have. hcl alone is not strict enough: it evaluates job.uid == "1001" to false
// without an error.
type typeChecker struct {
	locals map[string]*local
	order  []*local             // those that depend on the job, each after those that it names
	fixed  map[string]cty.Value // the values of the other locals
	loop   map[string]cty.Type  // the variables of the for that is being checked
	needs  policy.Lookups       // the look-ups that the expressions need
	wrong  hcl.Diagnostics
	// functions are the builtins in hcl's form. They stand here because builtins cannot refer to themselves.
	functions map[string]function.Function
}

func newTypeChecker() *typeChecker {
	return &typeChecker{locals: map[string]*local{}, fixed: map[string]cty.Value{}, functions: functions()}
}

type local struct {
	name  string
	expr  hclsyntax.Expression
	where hcl.Range
	typ   cty.Type // NilType until it is checked
	open  bool     // it is being checked: if it is met again, there is a cycle
}

// mistake adds a diagnostic. It returns the type for a wrong expression.
func (c *typeChecker) mistake(where hcl.Range, summary, format string, args ...any) cty.Type {
	c.wrong = append(c.wrong, Mistake(where, summary, format, args...))
	return anyType
}

// wrongType adds the most frequent mistake.
func (c *typeChecker) wrongType(e hclsyntax.Expression, format string, args ...any) cty.Type {
	return c.mistake(e.Range(), "Wrong type", format, args...)
}

// notHere adds a mistake for HCL that policies do not have.
func (c *typeChecker) notHere(e hclsyntax.Expression, detail string) cty.Type {
	return c.mistake(e.Range(), "Not in this language", "%s", detail)
}

// typed returns false if an expression is wrong or has another type. what begins the sentence of the mistake.
func (c *typeChecker) typed(e hclsyntax.Expression, want cty.Type, what string) bool {
	before := len(c.wrong)
	if got := c.typeOf(e); !fits(want, got) {
		c.wrongType(e, "%s %s", what, instead(want, got, ", not "))
	}
	return len(c.wrong) == before
}

// constant returns the value of a checked expression that does not depend on the job. A failure is a mistake.
func (c *typeChecker) constant(e hclsyntax.Expression) (v cty.Value, ok bool) {
	v, ok, failed := constant(e, c.fixed, c.functions)
	if failed != nil {
		c.wrong = append(c.wrong, failed)
	}
	return v, ok
}

// constant returns the value of a checked expression that names no variable except these locals.
func constant(
	e hclsyntax.Expression, locals map[string]cty.Value, functions map[string]function.Function,
) (v cty.Value, ok bool, failed *hcl.Diagnostic) {
	variable := func(n variableName) bool {
		_, known := locals[n.Attribute]
		return n.Root != "local" || !known
	}
	if slices.ContainsFunc(NamesOf(e), variable) {
		return v, false, nil
	}
	variables := map[string]cty.Value{"local": cty.ObjectVal(locals)}
	v, failed = evaluate(e, &hcl.EvalContext{Variables: variables, Functions: functions})
	return v, failed == nil, failed
}

// variableName is the name of a variable in an expression, like job.user. The attribute is "" if it is not constant.
type variableName struct{ Root, Attribute string }

// NamesOf returns the variables of an expression.
func NamesOf(e hclsyntax.Expression) (names []variableName) {
	for _, traversal := range e.Variables() {
		n := variableName{Root: traversal.RootName()}
		if len(traversal) > 1 {
			n.Attribute, _ = attributeOf(traversal[1])
		}
		names = append(names, n)
	}
	return names
}

// constantOf returns the value of an attribute that may not depend on the job.
func (c *typeChecker) constantOf(attr *hcl.Attribute, want cty.Type) (v cty.Value, ok bool) {
	if e := expression(attr); c.typed(e, want, attr.Name+" is") {
		return c.mustBeConstant(e, attr.Name)
	}
	return v, false
}

func (c *typeChecker) mustBeConstant(e hclsyntax.Expression, name string) (cty.Value, bool) {
	before := len(c.wrong)
	v, ok := c.constant(e)
	if !ok && len(c.wrong) == before {
		c.mistake(e.Range(), "Variables not allowed", "%s is constant: it cannot depend on a job", name)
	}
	return v, ok
}

// typeOf returns the type of an expression. Kinds of nodes that are not here are not part of the language.
func (c *typeChecker) typeOf(e hclsyntax.Expression) cty.Type {
	switch e := e.(type) {
	case *hclsyntax.ParenthesesExpr:
		return c.typeOf(e.Expression)
	case *hclsyntax.TemplateWrapExpr:
		return c.typeOf(e.Wrapped)
	case *hclsyntax.LiteralValueExpr:
		return c.literal(e)
	case *hclsyntax.TemplateExpr:
		return c.template(e)
	case *hclsyntax.ScopeTraversalExpr:
		return c.variable(e)
	case *hclsyntax.RelativeTraversalExpr:
		return c.steps(c.typeOf(e.Source), e.Traversal)
	case *hclsyntax.IndexExpr:
		return c.index(e)
	case *hclsyntax.FunctionCallExpr:
		return c.call(e)
	case *hclsyntax.ConditionalExpr:
		return c.conditional(e)
	case *hclsyntax.BinaryOpExpr:
		return c.binary(e)
	case *hclsyntax.UnaryOpExpr:
		return c.unary(e)
	case *hclsyntax.TupleConsExpr:
		return c.list(e)
	case *hclsyntax.ObjectConsExpr:
		return c.object(e)
	case *hclsyntax.ForExpr:
		return c.forEach(e)
	}
	return c.notHere(e, "a policy has operators, function calls, \"${…}\", lists, objects, for and ?: alone")
}

// The bounds of a number in a policy. A prolog would take minutes to write the digits of 1e1000000.
const (
	maxNumber = 1e15
	minNumber = 1e-9
)

func (c *typeChecker) literal(e *hclsyntax.LiteralValueExpr) cty.Type {
	if e.Val.IsNull() {
		return c.mistake(e.Range(), "No null", "null is not supported: unset values are \"\", 0 or []")
	}
	if e.Val.Type() == cty.Number {
		size := math.Abs(float(e.Val))
		if size > maxNumber || size < minNumber && e.Val.AsBigFloat().Sign() != 0 {
			return c.mistake(e.Range(), "Out of range", "a number is 0, or from %g to %g", minNumber, maxNumber)
		}
	}
	return e.Val.Type()
}

// operand checks an operand or an argument. A wrong type becomes anyType, so that one mistake is reported once.
func (c *typeChecker) operand(e hclsyntax.Expression, want cty.Type, operator string) cty.Type {
	got := c.typeOf(e)
	if !fits(want, got) {
		return c.wrongType(e, "%s takes %s", operator, instead(want, got, ", and this is "))
	}
	return got
}

func (c *typeChecker) template(e *hclsyntax.TemplateExpr) cty.Type {
	for _, part := range e.Parts {
		if t := c.typeOf(part); !single(t) {
			c.wrongType(part, "${…} takes a string, number or bool, and this is %s: join(\", \", …) makes a string of a list", aType(t))
		}
	}
	return cty.String
}

// variable returns the type of a variable, or of an attribute of it.
func (c *typeChecker) variable(e *hclsyntax.ScopeTraversalExpr) cty.Type {
	root := e.Traversal.RootName()
	if t, ok := c.loop[root]; ok {
		return c.steps(t, e.Traversal[1:])
	}
	if namespaces[root] == nil && root != "local" {
		hint := suggestRoot(root, len(e.Traversal) == 1)
		return c.mistake(e.Traversal[0].SourceRange(), "Unknown variable", "There is no variable named %q.%s", root, hint)
	}
	if len(e.Traversal) == 1 {
		return c.mistake(e.Range(), "Incomplete name", "%s has attributes: write %s.NAME", root, root)
	}
	name, ok := attributeOf(e.Traversal[1])
	where := e.Traversal[1].SourceRange()
	switch {
	case !ok:
		return c.mistake(where, "Incomplete name", "%s has attributes: write %s.NAME", root, root)
	case root == "local":
		return c.steps(c.local(name, where), e.Traversal[2:])
	}
	v, ok := variableNamed(root, name)
	if !ok {
		known := variableNames(root)
		hint := cmp.Or(suggest(name, known), " It has "+strings.Join(known, ", ")+".")
		return c.mistake(where, "Unsupported attribute", "%s has no attribute named %q.%s", root, name, hint)
	}
	if v.needs != nil {
		*v.needs(&c.needs) = true
	}
	return c.steps(v.typ(), e.Traversal[2:])
}

// attributeOf returns the name of a step: .name or ["name"].
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

func (c *typeChecker) local(name string, where hcl.Range) cty.Type {
	l := c.locals[name]
	switch {
	case l == nil:
		hint := suggest(name, sortedKeys(c.locals))
		return c.mistake(where, "Unsupported attribute", "there is no local named %q.%s", name, hint)
	case l.open:
		return c.mistake(where, "Cycle", "local.%s is made of itself", name)
	}
	c.checkLocal(l)
	return l.typ
}

// checkLocal checks a local at its first use.
func (c *typeChecker) checkLocal(l *local) {
	if l.typ != cty.NilType {
		return
	}
	loop, before := c.loop, len(c.wrong)
	l.open, c.loop = true, nil
	l.typ = c.typeOf(l.expr)
	l.open, c.loop = false, loop
	if len(c.wrong) > before {
		l.typ = anyType
		return
	}
	if v, ok := c.constant(l.expr); ok {
		c.fixed[l.name] = v
		return
	}
	c.order = append(c.order, l)
}

// steps follows attributes and elements of a value.
func (c *typeChecker) steps(t cty.Type, steps hcl.Traversal) cty.Type {
	for _, step := range steps {
		t = c.step(t, step)
	}
	return t
}

func (c *typeChecker) step(t cty.Type, step hcl.Traverser) cty.Type {
	name, named := attributeOf(step)
	switch {
	case t == anyType:
		return t
	case t.IsListType() && !named:
		return t.ElementType()
	case !t.IsObjectType() || !named:
		return c.mistake(step.SourceRange(), "Unsupported attribute", "this is %s and has none", aType(t))
	case !t.HasAttribute(name):
		hint := suggest(name, sortedKeys(t.AttributeTypes()))
		return c.mistake(step.SourceRange(), "Unsupported attribute", "the object has no attribute named %q.%s", name, hint)
	}
	return t.AttributeType(name)
}

func (c *typeChecker) index(e *hclsyntax.IndexExpr) cty.Type {
	collection, key := c.typeOf(e.Collection), c.typeOf(e.Key)
	switch {
	case collection == anyType || key == anyType:
		return anyType
	case collection.IsListType() && key == cty.Number:
		return collection.ElementType()
	case collection.IsObjectType() && key == cty.String:
		names, types := attributesOf(collection)
		joined, odd, ok := oneType(types)
		if !ok {
			return c.wrongType(e.Collection,
				"to be chosen from by name, its attributes must be of one kind: %q is %s", names[odd], aType(types[odd]))
		}
		return joined
	}
	return c.wrongType(e.Key, "an element of a list is found by a number and an attribute of an object by a string: "+
		"this looks into %s by %s", aType(collection), aType(key))
}

// attributesOf returns the attributes of an object in the order of their names.
func attributesOf(object cty.Type) (names []string, types []cty.Type) {
	names = sortedKeys(object.AttributeTypes())
	for _, name := range names {
		types = append(types, object.AttributeType(name))
	}
	return names, types
}

func (c *typeChecker) call(e *hclsyntax.FunctionCallExpr) cty.Type {
	f, ok := builtins[e.Name]
	switch {
	case !ok:
		hint := suggest(e.Name, sortedKeys(builtins))
		return c.mistake(e.NameRange, "Call to unknown function", "There is no function named %q.%s", e.Name, hint)
	case e.ExpandFinal:
		return c.notHere(e, "the arguments of a function are written out, not expanded by ...")
	case !f.fits(len(e.Args)):
		more := map[bool]string{true: " or more"}[f.more]
		return c.mistake(e.Range(), "Wrong number of arguments", "%s takes %d%s, not %d",
			e.Name, len(f.takes), more, len(e.Args))
	}
	before := len(c.wrong)
	args := make([]cty.Type, len(e.Args))
	for i, arg := range e.Args {
		args[i] = c.operand(arg, f.takes[min(i, len(f.takes)-1)], e.Name)
	}
	if f.check == nil || len(c.wrong) > before {
		return f.gives
	}
	return f.check(c, e, args)
}

func (c *typeChecker) conditional(e *hclsyntax.ConditionalExpr) cty.Type {
	c.operand(e.Condition, cty.Bool, "?:")
	yes, no := c.typeOf(e.TrueResult), c.typeOf(e.FalseResult)
	if !single(yes) || !single(no) || !fits(yes, no) {
		return c.wrongType(e, "?: chooses between two strings, numbers or bools, and these are %s and %s", aType(yes), aType(no))
	}
	return join(yes, no)
}

// operators are the operators with two operands of one type.
var operators = map[*hclsyntax.Operation]struct {
	sign         string
	takes, gives cty.Type
}{
	hclsyntax.OpLogicalAnd:         {"&&", cty.Bool, cty.Bool},
	hclsyntax.OpLogicalOr:          {"||", cty.Bool, cty.Bool},
	hclsyntax.OpEqual:              {"==", anyType, cty.Bool},
	hclsyntax.OpNotEqual:           {"!=", anyType, cty.Bool},
	hclsyntax.OpGreaterThan:        {">", cty.Number, cty.Bool},
	hclsyntax.OpGreaterThanOrEqual: {">=", cty.Number, cty.Bool},
	hclsyntax.OpLessThan:           {"<", cty.Number, cty.Bool},
	hclsyntax.OpLessThanOrEqual:    {"<=", cty.Number, cty.Bool},
	hclsyntax.OpAdd:                {"+", cty.Number, cty.Number},
	hclsyntax.OpSubtract:           {"-", cty.Number, cty.Number},
	hclsyntax.OpMultiply:           {"*", cty.Number, cty.Number},
	quotient:                       {"/", cty.Number, cty.Number},
	remainder:                      {"%", cty.Number, cty.Number},
}

func (c *typeChecker) binary(e *hclsyntax.BinaryOpExpr) cty.Type {
	switch e.Op {
	case hclsyntax.OpDivide:
		e.Op = quotient
	case hclsyntax.OpModulo:
		e.Op = remainder
	}
	operator, ok := operators[e.Op]
	if !ok {
		return c.notHere(e, "there is no such operator")
	}
	a, b := c.operand(e.LHS, operator.takes, operator.sign), c.operand(e.RHS, operator.takes, operator.sign)
	if operator.takes == anyType {
		c.compared(e, a, b)
	}
	return operator.gives
}

// compared refuses a comparison that is never true.
func (c *typeChecker) compared(e *hclsyntax.BinaryOpExpr, a, b cty.Type) {
	switch {
	case aType(a) != aType(b) && a != anyType && b != anyType:
		c.mistake(e.Range(), "Never equal", "this compares %s with %s", aType(a), aType(b))
	case !single(a) || !single(b):
		c.wrongType(e, "== and != compare numbers, strings and bools: see contains and length for lists")
	}
}

func (c *typeChecker) unary(e *hclsyntax.UnaryOpExpr) cty.Type {
	if e.Op == hclsyntax.OpLogicalNot {
		c.operand(e.Val, cty.Bool, "!")
		return cty.Bool
	}
	c.operand(e.Val, cty.Number, "-")
	return cty.Number
}

func (c *typeChecker) list(e *hclsyntax.TupleConsExpr) cty.Type {
	elem := anyType
	for _, item := range e.Exprs {
		elem = join(elem, c.element(item, elem))
	}
	return cty.List(elem)
}

// element checks an element of a list whose other elements have the given type.
func (c *typeChecker) element(e hclsyntax.Expression, others cty.Type) cty.Type {
	t := c.typeOf(e)
	if !single(t) || !fits(others, t) {
		return c.wrongType(e, "a list has numbers, strings or bools of one kind: this is %s", aType(t))
	}
	return t
}

func (c *typeChecker) object(e *hclsyntax.ObjectConsExpr) cty.Type {
	attributes := map[string]cty.Type{}
	for _, item := range e.Items {
		key, diags := item.KeyExpr.Value(nil)
		if diags.HasErrors() || key.IsNull() || key.Type() != cty.String {
			return c.mistake(item.KeyExpr.Range(), "Variables not allowed", "an attribute of an object has a constant name")
		}
		name := key.AsString()
		if _, twice := attributes[name]; twice {
			return c.mistake(item.KeyExpr.Range(), "Set twice", "the object has an attribute %q already", name)
		}
		attributes[name] = c.typeOf(item.ValueExpr)
	}
	return cty.Object(attributes)
}

// forEach makes a list from a list. It refuses one for inside another, because a user decides how long a job's lists
// are.
func (c *typeChecker) forEach(e *hclsyntax.ForExpr) cty.Type {
	switch {
	case e.KeyExpr != nil:
		return c.notHere(e, "for makes lists: [for x in LIST : VALUE if CONDITION]")
	case c.loop != nil:
		return c.notHere(e, "nested for expressions are not supported")
	}
	list := c.operand(e.CollExpr, anyList, "for")
	if list == anyType {
		return anyList
	}
	c.loop = map[string]cty.Type{e.ValVar: list.ElementType()}
	if e.KeyVar != "" {
		c.loop[e.KeyVar] = cty.Number
	}
	defer func() { c.loop = nil }()
	if e.CondExpr != nil {
		c.operand(e.CondExpr, cty.Bool, "if")
	}
	return cty.List(c.element(e.ValExpr, anyType))
}

// suggestRoot returns the likely meaning of an unknown name, which stands alone or has attributes.
func suggestRoot(root string, alone bool) string {
	for _, space := range []string{"job", "node", "gpu"} {
		if _, ok := variableNamed(space, root); ok {
			return fmt.Sprintf(" Did you mean %s.%s?", space, root)
		}
	}
	switch known := suggest(root, []string{"job", "node", "gpu", "local", "true", "false"}); {
	case known != "":
		return known
	case alone:
		return fmt.Sprintf(" A text stands in quotes: write %q.", root)
	case root == "var":
		return " Write local.NAME."
	}
	return ""
}

// suggest returns the name that was probably meant, as a sentence behind another.
func suggest(word string, names []string) string {
	if like := words.Nearest(word, names); like != "" {
		return fmt.Sprintf(" Did you mean %q?", like)
	}
	return ""
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// The types of the language are cty.Number, cty.String, cty.Bool, lists and objects. There is no null: a value that
// Slurm does not pass is "", 0 or an empty list.
var (
	// anyType is the type of a wrong expression, and of the elements of []. It fits every other type.
	anyType   = cty.DynamicPseudoType
	anyList   = cty.List(anyType)
	anyObject = cty.EmptyObject
)

// fits reports whether a value of one type can replace a value of another.
func fits(want, got cty.Type) bool {
	switch {
	case want == anyType || got == anyType:
		return true
	case want.IsListType() && got.IsListType():
		return fits(want.ElementType(), got.ElementType())
	case want.Equals(anyObject):
		return got.IsObjectType()
	}
	return want.Equals(got)
}

// join returns the type of a value that has one type or another type that fits it.
func join(a, b cty.Type) cty.Type {
	switch {
	case a == anyType:
		return b
	case a.IsListType() && b.IsListType():
		return cty.List(join(a.ElementType(), b.ElementType()))
	}
	return a
}

// single reports whether a value is neither a list nor an object.
func single(t cty.Type) bool { return !t.IsListType() && !t.IsObjectType() }

// wording is a type with its article, and its plural.
func wording(t cty.Type) (one, many string) {
	switch {
	case t == cty.Number:
		return "a number", "numbers"
	case t == cty.String:
		return "a string", "strings"
	case t == cty.Bool:
		return "true or false", "bools"
	case t.IsListType() || t.IsTupleType():
		return "a list", "lists"
	case t.IsObjectType():
		return "an object", "objects"
	}
	return "nothing", "nothing"
}

func aType(t cty.Type) string {
	one, _ := wording(t)
	return one
}

func plural(t cty.Type) string {
	_, many := wording(t)
	return many
}

// instead names a type and the type that is there instead. For two lists it names the elements.
func instead(want, got cty.Type, between string) string {
	if want.IsListType() && got.IsListType() {
		return "a list of " + plural(want.ElementType()) + ", not of " + plural(got.ElementType())
	}
	hint := ""
	if want == cty.Number && got.IsListType() {
		hint = ": length(…) counts a list"
	}
	return aType(want) + between + aType(got) + hint
}

// oneType joins types. It returns false if one of them does not fit those before it, and which.
func oneType(types []cty.Type) (joined cty.Type, odd int, ok bool) {
	joined = anyType
	odd = slices.IndexFunc(types, func(t cty.Type) bool {
		if !fits(joined, t) {
			return true
		}
		joined = join(joined, t)
		return false
	})
	return joined, odd, odd < 0
}
