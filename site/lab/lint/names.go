// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
)

// names checks names that a renaming by hand forgets: those of receivers, and those at the beginning of comments.
type names struct {
	set       *token.FileSet
	receivers map[string]*ast.Ident // the first receiver of a type, by folder and type
}

func newNames() *names { return &names{token.NewFileSet(), map[string]*ast.Ident{}} }

// check returns what is wrong with a file. A file that does not parse is left to the compiler.
func (n *names) check(name string, content []byte) (wrong []string) {
	file, err := parser.ParseFile(n.set, name, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	ast.Inspect(file, func(node ast.Node) bool {
		var pos token.Pos
		var sentence string
		switch node := node.(type) {
		case *ast.Field:
			pos, sentence = node.Pos(), fieldComment(node)
		case *ast.FuncDecl:
			pos, sentence = node.Pos(), n.receiver(path.Dir(name), node)
		}
		if sentence != "" {
			wrong = append(wrong, fmt.Sprintf("%s:%d: %s", name, n.set.Position(pos).Line, sentence))
		}
		return true
	})
	return wrong
}

// subject is the beginning of a comment such as "Name is the name". The word may also be one that is no name.
var (
	subject = regexp.MustCompile(`^(\w+) (is|are|returns|reports|counts|lists)\b`)
	noNames = []string{"All", "Each", "It", "That", "These", "They", "This", "What"}
)

// fieldComment returns what is wrong with the comment of a struct's field or an interface's method, or "".
func fieldComment(field *ast.Field) string {
	word := subject.FindStringSubmatch(field.Doc.Text())
	if len(field.Names) == 0 || word == nil || slices.Contains(noNames, word[1]) {
		return ""
	}
	if slices.ContainsFunc(field.Names, func(name *ast.Ident) bool { return name.Name == word[1] }) {
		return ""
	}
	return fmt.Sprintf("the comment of %s begins with the name %s", field.Names[0].Name, word[1])
}

// receiver returns what is wrong with the name of a method's receiver, or "". All methods of a type have one name.
func (n *names) receiver(folder string, method *ast.FuncDecl) string {
	if method.Recv == nil || len(method.Recv.List[0].Names) == 0 || method.Recv.List[0].Names[0].Name == "_" {
		return ""
	}
	typeName, name := typeOf(method.Recv.List[0].Type), method.Recv.List[0].Names[0]
	first := n.receivers[folder+" "+typeName]
	if first == nil {
		n.receivers[folder+" "+typeName] = name
		return ""
	}
	if first.Name == name.Name {
		return ""
	}
	return fmt.Sprintf("the receiver of %s is %s, and %s at %s", typeName, name.Name, first.Name, n.set.Position(first.Pos()))
}

// typeOf returns the name of a receiver's type.
func typeOf(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return typeOf(t.X)
	case *ast.IndexExpr:
		return typeOf(t.X)
	case *ast.IndexListExpr:
		return typeOf(t.X)
	case *ast.Ident:
		return t.Name
	}
	return ""
}
