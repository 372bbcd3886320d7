//! Real servers, data sets and loads for the tests.
