"""The errors that a person can act on; knows nothing else of this package.

LocalClusterError
├── PrerequisiteError   this machine lacks something; the message says what to install
├── BuildError          a Go program did not build; the message ends with the compiler's words
└── ComponentError      a component did not start or answer; its last log lines follow
"""

from __future__ import annotations


class LocalClusterError(Exception):
    pass


class PrerequisiteError(LocalClusterError):
    pass


class BuildError(LocalClusterError):
    pass


class ComponentError(LocalClusterError):
    pass
