"""The tests, a package for each part of the product or kind of promise: README.md says where the test of a thing is."""
