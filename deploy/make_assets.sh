#!/usr/bin/env bash
# Replaced below.
mkdir -p "$1"
