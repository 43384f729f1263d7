// Whether modules and tensors are as they were found: what a faster forward asks in every call, and what in Python takes
// longer than a small product. Everything that is compared is held by the lists that are given.
#include <nanobind/nanobind.h>

#include "python/unchanged_binding.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

PyObject* interned(const char* name) {
    PyObject* const made = PyUnicode_InternFromString(name);
    if (made == nullptr) {
        nb::raise_python_error();
    }
    return made;
}

// What a dict has by a name, or null.
PyObject* looked_up(PyObject* dict, PyObject* name) {
    PyObject* const found = PyDict_GetItemWithError(dict, name);
    if (found == nullptr && PyErr_Occurred()) {
        nb::raise_python_error();
    }
    return found;
}

nb::object called(PyObject* function) { return nb::steal(PyObject_CallNoArgs(function)); }

nb::object checked(nb::object found) {
    if (!found.is_valid()) {
        nb::raise_python_error();
    }
    return found;
}

bool same_items(PyObject* now, PyObject* found) {
    if (PyDict_Size(now) != PyDict_Size(found)) {
        return false;
    }
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(found, &at, &name, &value);) {
        if (looked_up(now, name) != value) {
            return false;
        }
    }
    return true;
}

bool is_empty(PyObject* own, PyObject* name) {
    PyObject* const dict = looked_up(own, name);
    return dict != nullptr && PyDict_Check(dict) && PyDict_Size(dict) == 0;
}

// `children`: a module's dict of modules, and what was in it. `forwards`: a module's attributes, and its own forward or None.
bool modules_unchanged(const nb::list& children, const nb::list& forwards) {
    static PyObject* const hooks = interned("_forward_hooks");
    static PyObject* const pre_hooks = interned("_forward_pre_hooks");
    static PyObject* const forward = interned("forward");
    for (nb::handle one : forwards) {
        PyObject* const own = PyTuple_GetItem(one.ptr(), 0);
        PyObject* const found = looked_up(own, forward);
        if (!is_empty(own, hooks) || !is_empty(own, pre_hooks) ||
            (found == nullptr ? Py_None : found) != PyTuple_GetItem(one.ptr(), 1)) {
            return false;
        }
    }
    for (nb::handle one : children) {
        if (!same_items(PyTuple_GetItem(one.ptr(), 0), PyTuple_GetItem(one.ptr(), 1))) {
            return false;
        }
    }
    return true;
}

// `tensors`: a dict, a name in it, what gives the tensor that was there (a weak reference), and its address. `copied`: what
// gives a tensor, and how often it had been changed in place. `learning`: gradients are recorded, and no tensor may want one.
bool tensors_unchanged(const nb::list& tensors, const nb::list& copied, bool learning) {
    static PyObject* const data_ptr = interned("data_ptr");
    static PyObject* const requires_grad = interned("requires_grad");
    static PyObject* const version = interned("_version");
    for (nb::handle one : tensors) {
        PyObject* const now = looked_up(PyTuple_GetItem(one.ptr(), 0), PyTuple_GetItem(one.ptr(), 1));
        if (now == nullptr || checked(called(PyTuple_GetItem(one.ptr(), 2))).ptr() != now) {
            return false;
        }
        if (now == Py_None) {
            continue;
        }
        PyObject* const place = PyTuple_GetItem(one.ptr(), 3);
        const nb::object lies = checked(nb::steal(PyObject_CallMethodNoArgs(now, data_ptr)));
        const bool moved = PyObject_RichCompareBool(lies.ptr(), place, Py_EQ) != 1;
        if (moved || (learning && checked(nb::steal(PyObject_GetAttr(now, requires_grad))).ptr() == Py_True)) {
            return false;
        }
    }
    for (nb::handle one : copied) {
        const nb::object now = checked(called(PyTuple_GetItem(one.ptr(), 0)));
        if (now.is_none()) {
            return false;
        }
        const nb::object changes = checked(nb::steal(PyObject_GetAttr(now.ptr(), version)));
        if (PyObject_RichCompareBool(changes.ptr(), PyTuple_GetItem(one.ptr(), 1), Py_EQ) != 1) {
            return false;
        }
    }
    return true;
}

}  // namespace

void define_unchanged(nb::module_& module) {
    module.def("modules_unchanged", &modules_unchanged, "children"_a, "forwards"_a);
    module.def("tensors_unchanged", &tensors_unchanged, "tensors"_a, "copied"_a, "learning"_a);
}
