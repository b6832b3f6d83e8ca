"""What one statement of a notebook defines and what it reads, by Python's own rules of scope."""

import ast
import symtable
from collections.abc import Iterator

STAR_IMPORT = "*"


def bound_names(statement: ast.stmt) -> set[str]:
    """Top-level names that the statement defines."""
    found = {symbol.get_name() for symbol in _table(statement).get_symbols() if _defines(symbol)}
    for table in _inner(_table(statement)):
        found |= {s.get_name() for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()}
    if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
        found.add(STAR_IMPORT)
    return found


def changed_names(statement: ast.stmt) -> set[str]:
    """Names at the root of what it assigns to (`x[0] = 1`), and of a method that it only calls (`x.append(1)`)."""
    return set(_changed(statement))


def read_names(statement: ast.stmt) -> set[str]:
    """Top-level names and builtins that the statement, or a function in it when called, looks up."""
    table = _table(statement)
    found = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    for inner in _inner(table):
        found |= {symbol.get_name() for symbol in inner.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return found


def _table(statement: ast.stmt) -> symtable.SymbolTable:
    return symtable.symtable(ast.unparse(statement), "cell", "exec")


def _inner(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _inner(child)


def _defines(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _changed(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield from _root(node)
    called = statement.value.func if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
    if isinstance(called, ast.Attribute):
        yield from _root(called)


def _root(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
